"""Misses of a cache under any policy, by running the policy on a few hundred of its sets.

Rows fall into sets by a hash and sets do not share anything, so a set chosen at random sees a fair sample of
the rows, and misses of all sets are those of the sampled ones times how many more there are: SHARDS
(Waldspurger et al., FAST 2015) with whole sets. A set is accessed so rarely that thousands of steps of a run
with millions of cached rows are a few hundred accesses of each: all sampled sets are simulated side by side.

Rules of what leaves are those of csrc/stores/cache_directory.cpp. Where all of a set is in use, the row goes
to an overflow area; here it is used and forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.cost.row_cache.frequencies import AccessFrequencies, Floats
from megalith.cost.row_cache.geometry import REACH, WAYS, CacheGeometry, MissCurve

Integers = NDArray[np.int64]

_MAX_SETS = 256
_MAX_ACCESSES = 4_000_000
"""Of all sampled sets together."""
_MAX_TURNS = 3072
"""Accesses of one set after which its misses no longer change."""
_CERTAIN = 4.0
"""An id with so many accesses a batch is in every batch."""
_BINS = 48
_EVICTIONS, _WHOLE_PERIOD = 40, 128
"""Of a period at whose end the counts of rows are halved that it did not use."""
_NEVER = np.int64(2**31 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Touches:
    """Accesses of the sampled sets, [set, turn], in the order of batches; a row counts once a batch."""

    rows: Integers
    """Numbers of rows, unlike in every set; -1 behind the last."""
    batches: Integers
    following: Integers
    """[set, turn] the turn at which the row is used next; its own if that is never."""
    seen: NDArray[np.bool_]
    """Whether an earlier batch used the row."""


def sampled_misses(
    frequencies: AccessFrequencies, cache: CacheGeometry, batch: int, steps: int, seed: int = 0
) -> MissCurve:
    """Rows that are not in the cache when a batch wants them, and rows that leave, by step of a run."""
    generator = np.random.default_rng(seed)
    per_batch = np.minimum(frequencies.per_batch(batch), _CERTAIN)
    accesses_of_a_set = max(float(frequencies.ids @ per_batch) / cache.sets, 1e-12)
    horizon = int(min(steps, max(1.0, _MAX_TURNS / accesses_of_a_set)))
    drawn = max(horizon, frequencies.samples / batch) if frequencies.whole else horizon
    affordable = int(_MAX_ACCESSES / (accesses_of_a_set * drawn))
    sets = min(cache.sets, _MAX_SETS, max(affordable, 16))
    touches = _touches(frequencies, cache, batch, horizon, sets, generator)
    missed, filled = _simulate(touches, cache)
    ends = np.unique(np.rint(np.linspace(0, horizon, _BINS + 1)))
    times = touches.batches
    scale = cache.sets / sets
    # First uses are known better than by a sample.
    first_uses = np.diff(frequencies.distinct(ends * batch))
    misses = (first_uses + np.histogram(times[missed & touches.seen], ends)[0] * scale) / np.diff(ends)
    cached = np.cumsum(np.histogram(times[filled], ends)[0]) * scale
    # Misses are means over bins; rows in the cache are those at their ends.
    middle = (ends[:-1] + ends[1:] + 1) / 2
    return MissCurve(middle, misses, np.interp(middle, ends[1:], cached))


def _touches(
    frequencies: AccessFrequencies,
    cache: CacheGeometry,
    batch: int,
    horizon: int,
    sets: int,
    generator: np.random.Generator,
) -> _Touches:
    """Draws the rows of each sampled set and when they are accessed."""
    classes = len(frequencies.ids)
    probability = 1.0 / cache.sets
    rows = generator.poisson(frequencies.ids * probability, (sets, classes))
    per_batch = np.minimum(frequencies.per_batch(batch), _CERTAIN)
    if frequencies.whole:
        epoch = frequencies.samples / batch
        columns = _epochs(rows, per_batch * epoch, epoch, horizon, generator)
    else:
        columns = _poisson(rows, per_batch, horizon, generator)
    return _by_turn(*columns, sets)


def _poisson(
    rows: Integers, per_batch: Floats, horizon: int, generator: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """(set, row, batch) of accesses at random moments."""
    first = np.cumsum(rows, axis=1) - rows
    counts = generator.poisson(rows * per_batch * horizon).ravel()
    owner = np.repeat(np.arange(rows.size), counts)
    row = first.ravel()[owner] + generator.integers(0, rows.ravel()[owner])
    return owner // rows.shape[1], row, generator.integers(0, horizon, len(owner))


def _epochs(
    rows: Integers, accesses: Floats, epoch: float, horizon: int, generator: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """(set, row, batch) where every epoch has the same accesses in another order."""
    owner = np.repeat(np.arange(rows.size), rows.ravel())
    first = np.cumsum(rows, axis=1) - rows
    begin = np.repeat(np.cumsum(rows.ravel()) - rows.ravel(), rows.ravel())
    row = first.ravel()[owner] + np.arange(len(owner)) - begin
    counts = _rounded(accesses[owner % rows.shape[1]], generator)
    columns = []
    for number in range(int(np.ceil(horizon / epoch))):
        each = np.repeat(np.arange(len(owner)), counts)
        time = (number + generator.random(len(each))) * epoch
        each, time = each[time < horizon], time[time < horizon]
        columns.append((owner[each] // rows.shape[1], row[each], time.astype(np.int64)))
    sets, numbers, times = (np.concatenate(column) for column in zip(*columns, strict=True))
    return sets, numbers, times


def _rounded(numbers: Floats, generator: np.random.Generator) -> Integers:
    """Up or down at random, so that the mean is kept."""
    return np.floor(numbers + generator.random(numbers.shape)).astype(np.int64)


def _by_turn(owner: Integers, row: Integers, batch: Integers, sets: int) -> _Touches:
    """One line of accesses for each set; a row that a batch has twice is one access."""
    span = int(batch.max(initial=0)) + 1
    width = int(row.max(initial=0)) + 1
    # Sorted by set, batch and row: rows have random numbers, so that is a random order within a batch.
    key = np.unique((owner * span + batch) * width + row)
    owner, batch, row = key // (span * width), key // width % span, key % width
    uses = np.lexsort((batch, row, owner))
    again = (owner[uses[1:]] == owner[uses[:-1]]) & (row[uses[1:]] == row[uses[:-1]])
    seen = np.zeros(len(key), dtype=np.bool_)
    seen[uses[1:]] = again
    counts = np.bincount(owner, minlength=sets)
    turn = np.arange(len(key)) - np.repeat(np.cumsum(counts) - counts, counts)
    following = turn.copy()
    following[uses[:-1]] = np.where(again, turn[uses[1:]], turn[uses[:-1]])
    shape = sets, int(counts.max(initial=0))
    lines = [np.full(shape, -1, dtype=np.int64) for _ in range(4)]
    for line, values in zip(lines, (row, batch, following, seen), strict=True):
        line[owner, turn] = values
    return _Touches(lines[0], lines[1], lines[2], lines[3] == 1)


def _simulate(touches: _Touches, cache: CacheGeometry) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[set, turn] whether the row was missing, and whether it took a slot that was empty."""
    sets = len(touches.rows)
    # Those with most accesses first: the sets that still have some are always the first ones.
    lengths = (touches.rows >= 0).sum(axis=1)
    ranked = np.argsort(-lengths, kind="stable")
    active = sets - np.searchsorted(np.sort(lengths), np.arange(touches.rows.shape[1]), side="right")
    mine = _Touches(
        touches.rows[ranked], touches.batches[ranked], touches.following[ranked], touches.seen[ranked]
    )
    missed, filled = (np.zeros(touches.rows.shape, dtype=np.bool_) for _ in range(2))
    missed[ranked], filled[ranked] = _simulate_ranked(mine, cache, active.tolist())
    return missed, filled


def _simulate_ranked(
    touches: _Touches, cache: CacheGeometry, active: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The same; at each turn the first `active` sets are accessed."""
    sets = len(touches.rows)
    all_sets = np.arange(sets)
    tags = np.full((sets, WAYS), -1, dtype=np.int64)
    stamps = np.full((sets, WAYS), -(2**20), dtype=np.int64)
    counts = np.zeros((sets, WAYS), dtype=np.int64)
    turns = np.zeros((sets, WAYS), dtype=np.int64)
    periods = np.zeros((sets, 3), dtype=np.int64)
    missed, filled = (np.zeros(touches.rows.shape, dtype=np.bool_) for _ in range(2))
    for turn, left in enumerate(active):
        if left < len(tags):
            tags, stamps, counts, turns, periods = (
                held[:left] for held in (tags, stamps, counts, turns, periods)
            )
        every, row, batch = all_sets[:left], touches.rows[:left, turn], touches.batches[:left, turn]
        same = tags == row[:, None]
        hit = same.any(axis=1)
        next_use = stamps
        if cache.policy == "lookahead":
            next_use = _look_ahead(touches, turns, cache.group_bits)
        order = _leaving_order(cache, batch, stamps, counts, next_use)
        order[tags < 0] = -1
        victim = order.argmin(axis=1)
        free = order[every, victim] < _NEVER << 30
        empty = tags[every, victim] < 0
        enters = ~hit & free
        missed[:left, turn] = ~hit
        filled[:left, turn] = enters & empty
        if cache.policy != "lru":
            periods[:, 2] += hit
            _fade(counts, stamps, periods, batch, (enters & ~empty).nonzero()[0])
        slot = np.where(hit, same.argmax(axis=1), victim)
        at = (hit | enters).nonzero()[0]
        to = slot[at]
        counts[at, to] = np.where(hit[at], np.minimum(counts[at, to] + 1, 255), 1)
        tags[at, to], stamps[at, to] = row[at], batch[at]
        turns[at, to] = turn
    return missed, filled


def _fade(counts: Integers, stamps: Integers, periods: Integers, batch: Integers, evicting: Integers) -> None:
    """Fades the counts of sets that a row leaves; `periods` are [set, (first batch, evictions, hits)]."""
    counts[evicting] -= counts[evicting] // 8
    periods[evicting, 1] += 1
    evictions, hits = periods[evicting, 1], periods[evicting, 2]
    ended = evicting[(evictions >= _EVICTIONS) & (evictions + 2 * hits >= _WHOLE_PERIOD)]
    counts[ended] >>= stamps[ended] < periods[ended, :1]
    periods[ended] = 0
    periods[ended, 0] = batch[ended]


def _look_ahead(touches: _Touches, turns: Integers, group_bits: int) -> Integers:
    """[set, slot] the batches that use rows next which were last used at these turns; -1 if none does.

    A group of batches counts once: after its first use of a row, the next one known is in another group.
    """
    own_set = np.arange(len(turns))[:, None]
    group, known = touches.batches[own_set, turns] >> group_bits, turns
    while True:
        following = touches.following[own_set, known]
        batches = touches.batches[own_set, following]
        same = (following > known) & (batches >> group_bits == group)
        if not same.any():
            return np.where(following > known, batches, -1)
        known = np.where(same, following, known)


def _leaving_order(
    cache: CacheGeometry, batch: Integers, stamps: Integers, counts: Integers, next_use: Integers
) -> Integers:
    """A number for each slot: the smallest of a set leaves first, the largest may not leave."""
    now = batch[:, None]
    order = stamps + 2**20
    if cache.policy != "lru":
        order = order + (counts << 32)
    if cache.policy == "lookahead":
        # What the window uses leaves last, and of it what is used furthest ahead first.
        wanted = (next_use >= now) & (next_use <= now + cache.window)
        ahead = (next_use >> cache.group_bits) - (now >> cache.group_bits)
        order = np.where(wanted, order + (1 << 41) + ((REACH - ahead) << 42), order)
    return np.where(stamps > now - cache.in_flight, _NEVER << 30, order)
