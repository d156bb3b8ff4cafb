"""Hits, reads, writes and bytes on disk of a run with a row cache, before it starts.

    frequencies = merge_frequencies([...])                     # ids of all tables whose rows have this shape
    predict_cache(frequencies, CacheGeometry(16_000_000, "lookahead", window=4), row_bytes=260,
                  batch=4096, steps=10_000)

A row that was never trained is stored nowhere: its first use is a miss that reads nothing. So

    hits = lookups - misses        reads = misses - rows touched for the first time
    rows written back = misses - rows that found an empty slot

and a row that a batch has twice is one miss and then hits, as the pool counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from megalith.core.errors import ConfigError, nearest
from megalith.cost.row_cache.disk_layout import (
    BLOCK_BYTES,
    SEGMENT_BYTES,
    SPACE_FACTOR,
    moved_per_evicted,
    record_bytes,
)
from megalith.cost.row_cache.frequencies import AccessFrequencies
from megalith.cost.row_cache.geometry import POLICIES, CacheGeometry, MissCurve
from megalith.cost.row_cache.lru import lru_misses
from megalith.cost.row_cache.sampled_sets import sampled_misses

_LATE = 0.2
"""The last part of a run that stands for what follows it."""


@dataclass(frozen=True, slots=True)
class RowTraffic:
    """Rows that move in some steps of a run, as means of one step."""

    lookups: float
    misses: float
    new_rows: float
    """Touched for the first time: neither on disk nor read."""
    evicted_rows: float
    """Written, as every row that training touches is changed."""
    moved_rows: float
    """Written again because their segment was collected."""
    disk_reads: float
    """Reads of blocks; rows of one block share one, and rows of the segment being filled need none."""

    @property
    def hit_rate(self) -> float:
        """Lookups whose row is in memory; as `PoolStatistics` has it, hits / lookups."""
        return 1.0 - self.misses / self.lookups if self.lookups else 1.0

    @property
    def read_rows(self) -> float:
        """Rows that are read from disk."""
        return self.misses - self.new_rows


@dataclass(frozen=True, slots=True)
class CachePrediction:
    """What a cache does in a run that begins with an empty one."""

    batch: int
    steps: int
    run: RowTraffic
    """Mean of all steps."""
    late: RowTraffic
    """Mean of the last fifth: what a longer run goes on with."""
    touched_rows: float
    cached_rows: float
    record_bytes: float
    """Of a row on disk."""
    disk_bytes: float
    """Of all files after a checkpoint at the end, which writes what the cache holds before anything is
    collected: the most that the run takes, but for files that only older checkpoints keep."""

    @property
    def hit_rate(self) -> float:
        """Of the whole run."""
        return self.run.hit_rate

    @property
    def write_amplification(self) -> float:
        """Rows written for each that leaves the cache."""
        return 1.0 + self.late.moved_rows / self.late.evicted_rows if self.late.evicted_rows else 1.0


def miss_curve(frequencies: AccessFrequencies, cache: CacheGeometry, batch: int, steps: int) -> MissCurve:
    """Misses by step: in closed form under LRU, by sampled sets under other policies."""
    if cache.policy not in POLICIES:
        raise ConfigError(f"Unknown cache policy '{cache.policy}'; {nearest(cache.policy, list(POLICIES))}")
    model = lru_misses if cache.policy == "lru" else sampled_misses
    return model(frequencies, cache, batch, steps)


def predict_cache(
    frequencies: AccessFrequencies,
    cache: CacheGeometry,
    *,
    row_bytes: int,
    batch: int,
    steps: int,
    space_factor: float = SPACE_FACTOR,
) -> CachePrediction:
    """Predicts `steps` batches of `batch` samples; `row_bytes` count the optimizer state."""
    curve = miss_curve(frequencies, cache, batch, steps)
    disk = _Disk(row_bytes, space_factor)
    middle = int(steps * (1.0 - _LATE))
    run = _traffic(frequencies, curve, batch, 0, steps, disk)
    late = _traffic(frequencies, curve, batch, middle, steps, disk)
    touched, cached = float(frequencies.distinct(steps * batch)), curve.cached_at(steps)
    in_files = disk.file_rows(touched, run.evicted_rows * steps)
    return CachePrediction(
        batch=batch,
        steps=steps,
        run=run,
        late=late,
        touched_rows=touched,
        cached_rows=cached,
        record_bytes=disk.record,
        disk_bytes=(in_files + cached) * disk.record,
    )


def trained_before(
    found: CachePrediction, frequencies: AccessFrequencies, cache: CacheGeometry, row_bytes: int
) -> CachePrediction:
    """The same run where every row was trained once before it, in no order that matters: the cache is full, a
    miss is always a read, and slots that the run has not taken yet hold other rows, which may be wanted."""
    unseen = max(frequencies.num_ids - found.touched_rows, 1.0)
    luck = min(max(cache.capacity - found.cached_rows, 0.0) / unseen, 1.0)
    disk, cached = _Disk(row_bytes, SPACE_FACTOR), min(cache.capacity, frequencies.num_ids)
    moved = disk.moved(frequencies.num_ids, cached, float("inf"))
    stored = disk.file_rows(frequencies.num_ids, float("inf"))

    def full(traffic: RowTraffic) -> RowTraffic:
        misses = traffic.misses - luck * traffic.new_rows
        return RowTraffic(traffic.lookups, misses, 0.0, misses, moved * misses, disk.reads(misses, stored))

    return replace(
        found,
        run=full(found.run),
        late=full(found.late),
        touched_rows=frequencies.num_ids,
        cached_rows=cached,
        disk_bytes=(stored + cached) * disk.record,
    )


def steady_hit_rate(frequencies: AccessFrequencies, cache: CacheGeometry, batch: int) -> float:
    """The hit rate once the cache is full and has seen enough: that of a run without end."""
    curve = miss_curve(frequencies, cache, batch, steps=10_000_000)
    late, lookups = max(1, len(curve.misses) // 8), frequencies.lookups_per_sample * batch
    return 1.0 - float(np.mean(curve.misses[-late:])) / lookups if lookups else 1.0


@dataclass(frozen=True, slots=True)
class _Disk:
    """Files of rows of one size."""

    row_bytes: int
    space_factor: float

    @property
    def record(self) -> float:
        return record_bytes(self.row_bytes)

    def file_rows(self, touched: float, appended: float) -> float:
        """Records in the files: all that were appended, until there is no room for more."""
        return min(appended, self.space_factor * touched)

    def moved(self, touched: float, cached: float, appended: float) -> float:
        """Rows moved for each that is evicted."""
        held = self.file_rows(touched, appended)
        if held >= appended or held <= 0:
            return 0.0
        return moved_per_evicted(min(max(touched - cached, 0.0) / held, 0.999))

    def reads(self, rows: float, stored: float) -> float:
        """Reads of blocks for rows at random places of the files; the segment that is being filled is still
        in memory."""
        rows *= max(0.0, 1.0 - SEGMENT_BYTES / max(stored * self.record, 1.0))
        per_block = max(1.0, BLOCK_BYTES / self.record)
        blocks = max(stored / per_block, 1.0)
        return float(-blocks * np.expm1(-rows / blocks))


def _traffic(
    frequencies: AccessFrequencies, curve: MissCurve, batch: int, first: int, last: int, disk: _Disk
) -> RowTraffic:
    """Steps first + 1 to last."""
    count = max(last - first, 1)
    misses = curve.sum_to(last) - curve.sum_to(first)
    before, touched = (float(frequencies.distinct(step * batch)) for step in (first, last))
    cached_before, cached = curve.cached_at(first), curve.cached_at(last)
    evicted = max(misses - (cached - cached_before), 0.0)
    appended = max(curve.sum_to(last) - cached, 0.0)
    moved = evicted * disk.moved(touched, cached, appended)
    new = touched - before
    # Curves are interpolated, first uses are not: where nothing is read they may differ a little.
    misses = max(misses, new)
    return RowTraffic(
        lookups=frequencies.lookups_per_sample * batch,
        misses=misses / count,
        new_rows=new / count,
        evicted_rows=evicted / count,
        moved_rows=moved / count,
        disk_reads=disk.reads((misses - new) / count, disk.file_rows(touched, appended)),
    )
