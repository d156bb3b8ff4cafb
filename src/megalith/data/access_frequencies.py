"""How often the ids of each table are accessed: from `statistics.json`, or from a sample of batches.

    table_frequencies(dataset, tables)      counted over the whole splits, or estimated from 4 million values

Memory is bounded by the number of values that a sample has, not by the ids of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.cost.row_cache.frequencies import AccessFrequencies, from_counts, merge_frequencies
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.data.stats import STATISTICS_FILE, FeatureStatistics, read_statistics
from megalith.data.unseen_ids import with_unseen_ids

SAMPLED_VALUES = 16_000_000
"""Ids of a sample, all features together: some seconds of reading, 300 MB of memory at most."""
_PENDING_VALUES = 1 << 20
_BATCH = 8192

Integers = NDArray[np.int64]


def table_frequencies(
    dataset: Dataset,
    tables: Sequence[TableSpec],
    splits: Sequence[str] = ("train",),
    max_values: int = SAMPLED_VALUES,
    seed: int = 0,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, AccessFrequencies]:
    """Frequencies of each table's ids in splits that are read together.

    Counted, where `megalith data stats --save` has left them and no two features share a table; else from
    batches of the data set in a random order of its row groups. `ranges` are the rows of tables that are
    part of larger ones.
    """
    measured = None if ranges else _measured(dataset, tables, splits)
    if measured is not None:
        return measured
    rows = sum(dataset.split(split).rows for split in splits)
    batch = max(1, min(_BATCH, rows))
    loader = Loader(dataset, splits, batch, seed=seed, drop_last=False, epochs=1)
    features = [feature.name for feature in loader.features]
    try:
        return sample_frequencies(iter(loader), features, tables, rows, max_values, ranges)
    finally:
        loader.close()


def sample_frequencies(
    batches: Iterable[Batch],
    features: Sequence[str],
    tables: Sequence[TableSpec],
    rows: int | None = None,
    max_values: int = SAMPLED_VALUES,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> dict[str, AccessFrequencies]:
    """Frequencies by table from the first batches of a stream, whose `features` are in this order.

    Ids that the sample missed are estimated (`unseen_ids`). With `rows`, the stream is a data set of so many
    samples that is read again and again; without, it has no end.
    """
    counters = {table.name: _IdCounter() for table in tables}
    samples = values = 0
    for batch in batches:
        ends = batch.offsets[:: batch.batch_size].tolist() if batch.batch_size else [0] * (len(features) + 1)
        for table in tables:
            for name in table.features:
                number = features.index(name)
                ids = batch.values[ends[number] : ends[number + 1]].numpy()
                if table.padding_index is not None:
                    ids = ids[ids != table.padding_index]
                if ranges and table.name in ranges:
                    first, last = ranges[table.name]
                    ids = ids[(ids >= first) & (ids < last)]
                counters[table.name].add(ids)
        samples += batch.batch_size
        values += len(batch.values)
        if values >= max_values:
            break
    by_table = {}
    for table in tables:
        counts = counters[table.name].counts()
        if rows is not None and samples >= rows:
            by_table[table.name] = from_counts(counts, samples, whole=True)
            continue
        stream = with_unseen_ids(counts, max(samples, 1), table.rows)
        by_table[table.name] = stream if rows is None else stream.of_data_set(rows)
    return by_table


def feature_frequencies(feature: FeatureStatistics, rows: int) -> AccessFrequencies | None:
    """What `statistics.json` has of a feature, in a split of so many rows; None in files that lack it."""
    if not feature.ids_by_count:
        return None
    ids, accesses = (np.array(column, dtype=np.float64) for column in zip(*feature.ids_by_count, strict=True))
    return AccessFrequencies(ids, accesses, float(rows), whole=True)


def _measured(
    dataset: Dataset, tables: Sequence[TableSpec], splits: Sequence[str]
) -> dict[str, AccessFrequencies] | None:
    if not (dataset.folder / STATISTICS_FILE).exists():
        return None
    statistics = read_statistics(dataset.folder)
    if tuple(splits) != (statistics.split,):
        return None
    known = {feature.name: feature_frequencies(feature, statistics.rows) for feature in statistics.features}
    by_table = {}
    for table in tables:
        found = known.get(table.features[0])
        # Which ids two features have in common, their counts do not tell.
        if len(table.features) > 1 or found is None:
            return None
        by_table[table.name] = found
    return by_table


def cache_frequencies(by_table: dict[str, AccessFrequencies], names: Iterable[str]) -> AccessFrequencies:
    """Those of the tables that share a cache."""
    return merge_frequencies([by_table[name] for name in names])


class _IdCounter:
    """Counts of distinct ids; what was added is sorted in once there is enough of it."""

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._pending: list[Integers] = []
        self._num_pending = 0

    def add(self, ids: Integers) -> None:
        """More ids, in any order."""
        self._pending.append(ids)
        self._num_pending += len(ids)
        if self._num_pending >= max(_PENDING_VALUES, len(self._ids)):
            self._merge()

    def counts(self) -> Integers:
        """How often each distinct id was added."""
        self._merge()
        return self._counts

    def _merge(self) -> None:
        if not self._num_pending:
            return
        ids, counts = np.unique(np.concatenate(self._pending), return_counts=True)
        both = np.concatenate((self._ids, ids))
        self._ids, place = np.unique(both, return_inverse=True)
        weights = np.concatenate((self._counts, counts)).astype(np.float64)
        self._counts = np.bincount(place, weights=weights).astype(np.int64)
        self._pending, self._num_pending = [], 0
