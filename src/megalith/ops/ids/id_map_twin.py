"""The plain truth of `IdMap`: dictionaries and sorted lists, one id after the other.

For each table and partition: which ids have a slot, and what is known of each. Nothing here is quick.
"""

from __future__ import annotations

import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from megalith.ops.ids.policies import PARTITIONS, IdTableSpec
from megalith.ops.text.keys_twin import mix64_twin

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_COUNTED = 10
"""Ids that a bucket of the counter has room for."""
_MOST_COUNTED = 65535


def mix_twin(value: int) -> int:
    """The hash of 64 bits that everything here comes from."""
    return mix64_twin(value & _MASK)


def float32(number: float) -> float:
    """Rounded to single precision."""
    return struct.unpack("f", struct.pack("f", number))[0]


@dataclass
class IdUseTwin:
    """What is known of an id that has a row."""

    slot: int
    last: int
    score: float
    time: int


@dataclass
class IdPartitionTwin:
    """The ids of a table that share a partition."""

    uses: dict[int, IdUseTwin] = field(default_factory=dict)
    counter: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Of each bucket the (tag, count) entries, the last used first."""

    def free_slot(self) -> int:
        """The lowest that no id has."""
        taken = {use.slot for use in self.uses.values()}
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)


class IdMapTwin:
    """What `IdMap` must decide; lists instead of tensors."""

    def __init__(
        self,
        tables: Sequence[IdTableSpec],
        lag: int = 0,
        partitions: tuple[int, int] = (0, PARTITIONS),
    ) -> None:
        self.tables, self.lag, self.partitions = list(tables), lag, partitions
        self._parts = [{p: IdPartitionTwin() for p in range(*partitions)} for _ in tables]
        self._segments = [0] * len(self.tables)
        self.statistics: list[Counter[str]] = [Counter() for _ in tables]

    def resolve(
        self,
        lookups: Iterable[tuple[int, int, int]],
        values: Sequence[int],
        batch: int,
        trains: bool,
        times: Sequence[int] | None = None,
    ) -> tuple[list[int], list[tuple[int, int, int]], list[tuple[int, int, int, str]]]:
        """Rows of the values; (table, row, id) of new rows; (table, id, row, reason) of ids that left."""
        rows = [-1] * len(values)
        positions: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for table, first, last in lookups:
            for position in range(first, last):
                partition = mix_twin(values[position]) >> 58
                positions[table, partition, values[position]].append(position)
        new: list[tuple[int, int, int]] = []
        evicted: list[tuple[int, int, int, str]] = []
        if trains:
            self._begin(batch)
        unknown = []
        for (table, partition, id_), occurrences in sorted(positions.items()):
            part, counts = self._parts[table][partition], self.statistics[table]
            if trains:
                counts["lookups"] += len(occurrences)
            if id_ not in part.uses:
                unknown.append((table, partition, id_, occurrences))
                continue
            use = part.uses[id_]
            for position in occurrences:
                rows[position] = self.row(partition, use.slot)
            if trains:
                counts["hits"] += len(occurrences)
                self._note(table, use, batch, occurrences, times)
        if not trains:
            return rows, new, evicted
        for table, partition, id_, occurrences in unknown:
            part, spec, counts = self._parts[table][partition], self.tables[table], self.statistics[table]
            if not self._admits(spec, part, id_, len(occurrences)):
                counts["refused"] += len(occurrences)
                continue
            if len(part.uses) == spec.rows_of(partition):
                leaving = [other for other, use in part.uses.items() if use.last + self.lag < batch]
                if not leaving:
                    counts["full"] += len(occurrences)
                    continue
                victim = min(leaving, key=lambda other: self._rank(spec, part.uses[other], other))
                evicted.append(self._leave(table, partition, victim, "bound"))
            self._forget(spec, part, id_)
            use = part.uses[id_] = IdUseTwin(part.free_slot(), 0, 0.0, 0)
            self._note(table, use, batch, occurrences, times)
            counts["admitted"] += 1
            new.append((table, self.row(partition, use.slot), id_))
            for position in occurrences:
                rows[position] = self.row(partition, use.slot)
        return rows, new, evicted

    def expire(self, batch: int, time: int = 0) -> list[tuple[int, int, int, str]]:
        """Ids that leave before a batch, as the tables' expiry says."""
        self._begin(batch)
        left = []
        for table, spec in enumerate(self.tables):
            least = spec.expiry.least_score(spec.eviction.score_clock(batch))
            for partition, part in self._parts[table].items():
                for id_, use in sorted(part.uses.items()):
                    if use.last + self.lag >= batch:
                        continue
                    if spec.expiry.batches is not None and batch - use.last > spec.expiry.batches:
                        left.append(self._leave(table, partition, id_, "batches"))
                    elif spec.expiry.seconds is not None and time - use.time > spec.expiry.seconds:
                        left.append(self._leave(table, partition, id_, "seconds"))
                    elif use.score < least:
                        left.append(self._leave(table, partition, id_, "score"))
        return left

    def change_bound(
        self, table: int, bound: int
    ) -> tuple[list[tuple[int, int, int, str]], list[tuple[int, int, int, int]]]:
        """Ids that leave, and (table, id, from, to) of rows that move."""
        spec = self.tables[table] = replace(self.tables[table], bound=bound)
        left: list[tuple[int, int, int, str]] = []
        moved: list[tuple[int, int, int, int]] = []
        for partition, part in self._parts[table].items():
            room = spec.rows_of(partition)
            ranked = sorted(part.uses, key=lambda id_: self._rank(spec, part.uses[id_], id_))
            left += [
                self._leave(table, partition, id_, "shrunk") for id_ in ranked[: max(0, len(ranked) - room)]
            ]
            for id_, use in sorted(part.uses.items(), key=lambda entry: entry[1].slot):
                if use.slot >= room:
                    source, use.slot = use.slot, part.free_slot()
                    moved.append((table, id_, self.row(partition, source), self.row(partition, use.slot)))
        return left, moved

    def scan(self, table: int) -> list[tuple[int, int, int, float, int]]:
        """(id, row, last batch, score, time) by id."""
        return sorted(
            (id_, self.row(partition, use.slot), use.last, use.score, use.time)
            for partition, part in self._parts[table].items()
            for id_, use in part.uses.items()
        )

    def clear(self, table: int) -> None:
        """Forgets all ids of a table and what was counted of it."""
        self._parts[table] = {p: IdPartitionTwin() for p in range(*self.partitions)}
        self.statistics[table] = Counter()

    def load(
        self, table: int, entries: Iterable[tuple[int, int, float, int]]
    ) -> tuple[list[int], list[tuple[int, int, int, str]]]:
        """Takes (id, last batch, score, time); rows, and ids that left or got no row."""
        spec, given = self.tables[table], list(entries)
        left: list[tuple[int, int, int, str]] = []
        for id_, last, score, time in given:
            partition = mix_twin(id_) >> 58
            part = self._parts[table].get(partition)
            if part is None:
                continue
            use = IdUseTwin(-1, max(1, last), score, time if spec.timed else 0)
            if id_ in part.uses:
                use.slot = part.uses[id_].slot
            elif len(part.uses) == spec.rows_of(partition):
                least = min(part.uses, key=lambda other: self._rank(spec, part.uses[other], other))
                if self._rank(spec, use, id_) < self._rank(spec, part.uses[least], least):
                    left.append((table, id_, -1, "bound"))
                    self.statistics[table]["bound"] += 1
                    continue
                left.append(self._leave(table, partition, least, "bound"))
            if use.slot < 0:
                use.slot = part.free_slot()
            part.uses[id_] = use
        return [self.row_of(table, id_) for id_, *_ in given], left

    def resume(self, batch: int) -> None:
        """Goes on after a batch."""
        self._segments = [table.eviction.score_clock(batch).segment for table in self.tables]

    def row(self, partition: int, slot: int) -> int:
        """The number of a row."""
        first, last = self.partitions
        return slot * (last - first) + partition - first

    def row_of(self, table: int, id_: int) -> int:
        """The row of an id, or -1."""
        partition = mix_twin(id_) >> 58
        part = self._parts[table].get(partition)
        return self.row(partition, part.uses[id_].slot) if part and id_ in part.uses else -1

    def _begin(self, batch: int) -> None:
        """Divides scores where a segment ends; those too small for single precision are 0."""
        for table, spec in enumerate(self.tables):
            passed = spec.eviction.score_clock(batch).segment - self._segments[table]
            if passed <= 0:
                continue
            for part in self._parts[table].values():
                for use in part.uses.values():
                    smaller = math.ldexp(use.score, -64 * passed)
                    use.score = smaller if smaller >= 2.0**-126 else 0.0
            self._segments[table] += passed

    def _note(
        self, table: int, use: IdUseTwin, batch: int, occurrences: list[int], times: Sequence[int] | None
    ) -> None:
        use.last = batch
        weight = self.tables[table].eviction.score_clock(batch).weight
        for position in occurrences:
            use.score = float32(use.score + weight)
            if self.tables[table].timed and times is not None:
                use.time = max(use.time, times[position])

    def _leave(self, table: int, partition: int, id_: int, reason: str) -> tuple[int, int, int, str]:
        use = self._parts[table][partition].uses.pop(id_)
        self.statistics[table][reason] += 1
        return table, id_, self.row(partition, use.slot), reason

    @staticmethod
    def _rank(spec: IdTableSpec, use: IdUseTwin, id_: int) -> tuple[float, int, int]:
        return use.score if spec.eviction.by_score else 0.0, use.last, id_

    @staticmethod
    def _place(spec: IdTableSpec, id_: int) -> tuple[int, int]:
        """The bucket of the counter and the tag of an id."""
        mixed = mix_twin(mix_twin(id_) + _GOLDEN)
        return (mixed >> 32) * spec.admission.counter_buckets >> 32, (mixed & 0xFFFFFFFF) or 1

    def _admits(self, spec: IdTableSpec, part: IdPartitionTwin, id_: int, occurrences: int) -> bool:
        if spec.admission.kind == "always":
            return True
        bucket, tag = self._place(spec, id_)
        before = dict(part.counter[bucket]).get(tag, 0)
        others = [entry for entry in part.counter[bucket] if entry[0] != tag]
        part.counter[bucket] = [(tag, min(_MOST_COUNTED, before + occurrences)), *others][:_COUNTED]
        if spec.admission.kind == "count":
            return before + occurrences >= spec.admission.count
        state = mix_twin(id_ + spec.seed)
        numbers = range(before + 1, before + occurrences + 1)
        return any(mix_twin(state + number * _GOLDEN) < spec.admission.limit for number in numbers)

    def _forget(self, spec: IdTableSpec, part: IdPartitionTwin, id_: int) -> None:
        if spec.admission.kind != "always":
            bucket, tag = self._place(spec, id_)
            part.counter[bucket] = [entry for entry in part.counter[bucket] if entry[0] != tag]
