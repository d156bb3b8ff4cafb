"""Look-ahead over caches so small that every row is compared with every other, in plain Python."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass
class _Period:
    """What happened to a group of slots since a batch."""

    first: int = 0
    evictions: int = 0
    hits: int = 0


class LookAheadTwin:
    """A pool of 17 slots that is trained, whose cache is 16 of them: the rule of what leaves, step by step.

    `nearest` picks, of the coming batches that use a row, the one that counts: the next, `min`.
    """

    REACH = 32
    SLOTS = 17
    GROUP = 16
    """Slots whose counts fade together."""
    EVICTIONS, WHOLE_PERIOD = 40, 128

    def __init__(self, nearest=min):
        self.nearest = nearest
        self.slots = [None] * self.SLOTS
        self.hand = self.now = self.group_bits = 0
        self.expected = defaultdict(set)
        self.used, self.counts = {}, {}
        self.hits = self.reads = 0
        self.periods = [_Period() for _ in range(0, self.SLOTS, self.GROUP)]
        self.ended = 0
        """Periods of all groups."""

    def group(self, batch):
        return batch >> self.group_bits

    def expect(self, ids, batch):
        while self.group(batch) - self.group(self.now + 1) > self.REACH:
            self.group_bits += 1
        for row in ids:
            self.expected[row].add(batch)

    def resolve(self, ids, batch, released):
        """Notes that a batch uses rows, while rows of batches after `released` cannot leave."""
        self.now = batch
        for row in ids:
            if row in self.slots:
                self.hits += 1
                if self.used[row] != batch:
                    self.counts[row] = min(255, self.counts[row] + 1)
                    self.periods[self.slots.index(row) // self.GROUP].hits += 1
            else:
                self.reads += row in self.used
                self.slots[self._room(released)] = row
                self.counts[row] = 1
            self.used[row] = batch
            self.expected[row] = {
                coming for coming in self.expected[row] if self.group(coming) > self.group(batch)
            }

    def _room(self, released):
        """A free slot while fewer than 16 are in use; else that of the row which is to leave."""
        full = self.slots.count(None) == 1
        candidates = []
        for _ in range(self.SLOTS):
            slot, row = self.hand, self.slots[self.hand]
            self.hand = (slot + 1) % self.SLOTS
            if row is None and not full:
                return slot
            if row is not None and self.used[row] <= released:
                candidates.append(slot)
            if len(candidates) == 16:
                break
        # Of several that may leave as well, the first.
        slot = max(candidates, key=lambda slot: self._leaving_order(self.slots[slot]))
        self._fade(slot // self.GROUP)
        self.slots[slot] = None
        return slot

    def _fade(self, group):
        """Counts lose an eighth; at the end of a period those of rows that it did not use are halved."""
        rows = [row for row in self.slots[group * self.GROUP : (group + 1) * self.GROUP] if row is not None]
        for row in rows:
            self.counts[row] -= self.counts[row] // 8
        period = self.periods[group]
        period.evictions += 1
        if period.evictions < self.EVICTIONS or period.evictions + 2 * period.hits < self.WHOLE_PERIOD:
            return
        for row in rows:
            if self.used[row] < period.first:
                self.counts[row] //= 2
        self.periods[group] = _Period(self.now)
        self.ended += 1

    def _leaving_order(self, row):
        """Not used by the window, or furthest ahead; then used the fewest times; then longest ago."""
        now = self.group(self.now)
        coming = [self.group(batch) - now for batch in self.expected[row]]
        return self.nearest(coming, default=63), -self.counts[row], -self.used[row]


def belady_hits(batches, capacity):
    """Hits where the row that leaves is the one whose next use is furthest, in a stream that is all known."""
    cached, hits = set(), 0
    for now, ids in enumerate(batches):
        for at, row in enumerate(ids):
            hits += row in cached
            if row not in cached and len(cached) == capacity:
                # Rows that this batch has used cannot leave.
                cached.remove(max(cached - set(ids[:at]), key=lambda old: _next_use(batches[now:], old)))
            cached.add(row)
    return hits


def _next_use(coming, row):
    return next((ahead for ahead, ids in enumerate(coming) if row in ids), len(coming))
