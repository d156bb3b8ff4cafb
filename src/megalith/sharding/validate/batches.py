"""Batches that a plan is checked with: drawn from statistics, or the first samples of a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.sharding.planner.statistics import TableStatistics

Ints = NDArray[np.int64]
IdBatch = tuple[Ints, Ints]
"""`values` and `offsets` of some samples, feature-major."""
_IDS = 1 << 22
"""Ids of a batch that is drawn."""


def generated_batch(
    tables: Sequence[TableSpec], statistics: Mapping[str, TableStatistics], samples: int, seed: int = 0
) -> IdBatch:
    """`values` and `offsets` of at most so many samples, drawn as the statistics say, feature-major."""
    draw = np.random.default_rng(seed)
    lookups = sum(known.lookups for known in statistics.values())
    samples = max(1, min(samples, int(_IDS / max(1e-9, lookups))))
    rows: dict[str, int] = {}
    owners: dict[str, tuple[TableSpec, TableStatistics]] = {}
    for table in tables:
        for feature in table.features:
            # A feature of several tables may only hold ids that all of them have.
            if not table.is_dynamic:
                rows[feature] = min(rows.get(feature, table.rows), table.rows)
            owners.setdefault(feature, (table, statistics[table.name]))
    values, lengths = [], []
    for feature, (table, known) in owners.items():
        mean = known.lookups / len(table.features)
        bags = np.full(samples, round(mean)) if mean == round(mean) else draw.poisson(mean, samples)
        ends = np.array((0.0, *known.rows))
        drawn = np.interp(draw.random(int(bags.sum())), (0.0, *known.shares), ends)
        if feature not in rows:
            # Ids of dynamic tables may be any 64 bits.
            values.append(mixed_bits(drawn.astype(np.int64)).astype(np.int64))
            lengths.append(bags)
            continue
        ids = np.minimum(drawn.astype(np.int64), rows[feature] - 1)
        if not known.hot_first:
            # Hot rows are anywhere.
            ids = (mixed_bits(ids) % np.uint64(rows[feature])).astype(np.int64)
        values.append(ids)
        lengths.append(bags)
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    return np.concatenate(values), offsets.astype(np.int64)


def first_samples(batch: IdBatch, num_features: int, samples: int) -> IdBatch:
    """The first samples of a batch."""
    values, offsets = batch
    size = (len(offsets) - 1) // num_features
    if size <= samples:
        return values, offsets
    lengths = np.diff(offsets).reshape(num_features, size)[:, :samples]
    starts = offsets[:-1].reshape(num_features, size)[:, 0]
    pieces = [values[start : start + taken] for start, taken in zip(starts, lengths.sum(axis=1), strict=True)]
    return np.concatenate(pieces), np.concatenate(([0], np.cumsum(lengths)))


def mixed_bits(numbers: Ints) -> NDArray[np.uint64]:
    """A random number for every id (the finalizer of splitmix64)."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
