"""What the planner knows of a table's lookups: ids of a sample, and how unevenly they fall on rows.

The rows of a table are seen as segments, from the first row to the last, each with its share of the lookups.
Prepared data numbers ids by falling count, so hot rows come first and a cut into equal numbers of rows is
anything but a cut into equal loads; where hot rows are spread (hashed ids) all segments weigh alike, but a
hot row is still read from a cache when it comes again. Segments grow with the row's number: the head, where
rows differ, is seen row by row, the tail in large pieces.

    from_dataset(tables, read_statistics(folder))     measured by `megalith data stats --save`
    from_batches(tables, [(values, offsets), ...])    a few batches, feature-major
    default_statistics(table)                         Zipf(1.05), one id a feature
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import TableSpec, feature_order

if TYPE_CHECKING:
    from megalith.data.stats import FeatureStatistics, Statistics

DEFAULT_SKEW = 1.05
"""Zipf exponent where nothing is known: 1% of a million rows then serve about 80% of the lookups."""
_SEGMENTS = 48
_DISTINCT_COST = 3.0
"""A row that a batch touches, as lookups of rows that are in a cache already."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Lookups of one table, all its features together."""

    lookups: float
    """Mean ids a sample looks up."""
    rows: tuple[float, ...]
    """Rising ends of segments, hottest rows first; the last is the number of rows."""
    shares: tuple[float, ...]
    """Share of lookups that fall on rows before each end; the last is 1."""
    hot_first: bool = True
    """Whether hot rows have small numbers; else they are spread over the table."""
    _cache: dict[float, Floats] = field(default_factory=dict, repr=False, compare=False)

    def hot_share(self, rows: float) -> float:
        """Share of the lookups that the `rows` hottest rows serve."""
        return float(np.interp(rows, (0.0, *self.rows), (0.0, *self.shares)))

    def share_before(self, rows: NDArray[np.int64] | Floats) -> Floats:
        """Share of the lookups that fall on rows before each of these numbers."""
        if not self.hot_first:
            return np.asarray(rows, dtype=np.float64) / self.rows[-1]
        return np.interp(rows, (0.0, *self.rows), (0.0, *self.shares))

    def distinct_before(self, rows: NDArray[np.int64] | Floats, ids: float) -> Floats:
        """Expected distinct rows before each of these numbers when `ids` are looked up in the whole table."""
        cumulative = self._distinct(ids)
        if not self.hot_first:
            return np.asarray(rows, dtype=np.float64) / self.rows[-1] * cumulative[-1]
        return np.interp(rows, (0.0, *self.rows), cumulative)

    def distinct_by_rank(self, rows: Floats, ids: float) -> Floats:
        """The same for the hottest rows, wherever they lie."""
        return np.interp(rows, (0.0, *self.rows), self._distinct(ids))

    def _distinct(self, ids: float) -> Floats:
        """Expected distinct rows before each end: a segment's rows are alike, so each is hit by a Poisson
        number of ids."""
        if ids not in self._cache:
            counts = np.diff((0.0, *self.rows))
            hits = ids * np.diff((0.0, *self.shares)) / counts
            self._cache[ids] = np.concatenate(([0.0], np.cumsum(counts * -np.expm1(-hits))))
        return self._cache[ids]

    def even_cut(self, parts: int, weight: float, ids: float = 0.0) -> NDArray[np.int64]:
        """Rows at which to cut into `parts`, such that `weight` x share of the load + (1 - weight) x share of
        rows is the same in each; no part is empty unless there are fewer rows than parts.

        0 gives equal rows, 1 equal loads; in between no part has more than 1 / weight of the mean load nor
        1 / (1 - weight) of the mean rows. The load is the lookups and, with `ids`, those of a batch,
        the distinct rows among them.
        """
        total = int(self.rows[-1])
        if total <= parts:
            return np.minimum(np.arange(parts + 1), total)
        ends = np.concatenate(([0.0], self.rows))
        load = self.share_before(ends)
        if ids > 0:
            load = ids * load + _DISTINCT_COST * self.distinct_before(ends, ids)
            load /= load[-1]
        measure = weight * load + (1 - weight) * ends / total
        cuts = np.rint(np.interp(np.arange(parts + 1) / parts, measure, ends)).astype(np.int64)
        # Rising by at least one from both sides: hot single rows may deserve less than a row.
        steps = np.arange(parts + 1)
        cuts = np.maximum.accumulate(cuts - steps) + steps
        return np.minimum(cuts, total - parts + steps)


def zipf_statistics(
    rows: int, lookups: float, skew: float = DEFAULT_SKEW, hot_first: bool = True
) -> TableStatistics:
    """Shares that fall as rank ** -skew; 0 is uniform."""
    ends = _ends(rows)
    mass = _harmonic(ends, skew)
    return TableStatistics(lookups, tuple(map(float, ends)), tuple(mass / mass[-1]), hot_first)


def default_statistics(
    table: TableSpec, lengths: Mapping[str, float] | None = None, skew: float = DEFAULT_SKEW
) -> TableStatistics:
    """One id of each feature, or the mean `lengths` given, by Zipf's law."""
    lookups = sum((lengths or {}).get(feature, 1.0) for feature in table.features)
    return zipf_statistics(table.rows, lookups, skew)


def from_dataset(tables: Sequence[TableSpec], statistics: Statistics) -> dict[str, TableStatistics]:
    """From what `megalith data stats --save` measured; features it does not know get the defaults."""
    known = {feature.name: feature for feature in statistics.features}
    by_table = {}
    for table in tables:
        parts = [
            _measured(table.rows, known[feature]) if feature in known else zipf_statistics(table.rows, 1.0)
            for feature in table.features
        ]
        by_table[table.name] = _joined(table.rows, parts)
    return by_table


def from_batches(
    tables: Sequence[TableSpec],
    batches: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> dict[str, TableStatistics]:
    """From a few batches of `values` and `offsets`, feature-major as EmbeddingCollection reads them."""
    features = feature_order(tables)
    seen: dict[str, list[NDArray[np.int64]]] = {name: [] for name in features}
    samples = 0
    for values, offsets in batches:
        batch = (len(offsets) - 1) // len(features)
        samples += batch
        for number, name in enumerate(features):
            seen[name].append(np.asarray(values[offsets[number * batch] : offsets[(number + 1) * batch]]))
    by_table = {}
    for table in tables:
        ids = np.concatenate(
            [piece for name in table.features for piece in seen[name]] or [np.empty(0, dtype=np.int64)]
        )
        if not samples or not len(ids):
            by_table[table.name] = zipf_statistics(table.rows, 0.0)
            continue
        by_table[table.name] = _counted(table.rows, ids, samples)
    return by_table


def _ends(rows: int) -> Floats:
    """Ends of segments: the first rows one by one, then ever larger pieces."""
    return np.unique(np.rint(np.geomspace(1, rows, min(rows, _SEGMENTS)))).astype(np.float64)


def _harmonic(ends: Floats, skew: float) -> Floats:
    """Sum of rank ** -skew up to each end: exact for the first ranks, then the integral."""
    head = min(int(ends[-1]), 4096)
    sums = np.cumsum(np.arange(1, head + 1, dtype=np.float64) ** -skew)
    beyond = np.maximum(ends, head)
    if abs(skew - 1.0) < 1e-9:
        tail = np.log((beyond + 0.5) / (head + 0.5))
    else:
        tail = ((beyond + 0.5) ** (1 - skew) - (head + 0.5) ** (1 - skew)) / (1 - skew)
    result: Floats = sums[np.minimum(ends, head).astype(np.int64) - 1] + np.where(ends > head, tail, 0.0)
    return result


def _measured(rows: int, feature: FeatureStatistics) -> TableStatistics:
    """A curve through what statistics.json knows: the hottest 1, 10 and 100 ids and the rows that serve 50%
    to 99%. Missing and unknown values have rows 0 and 1 and count among the hottest."""
    special = feature.missing_share + feature.unknown_share
    points = {
        2 + count: special + share
        for count, share in (
            (1, feature.top_1_share),
            (10, feature.top_10_share),
            (100, feature.top_100_share),
        )
    }
    points |= {count: float(share) for share, count in feature.rows_for_share.items() if count > 0}
    points[2 + feature.distinct_ids] = 1.0
    known = np.array(sorted((min(count, rows), share) for count, share in points.items()))
    shares = np.minimum(np.maximum.accumulate(known[:, 1]), 1.0)
    ends = _ends(rows)
    # Between two points shares rise with the logarithm of the rank, about as Zipf's law has it.
    curve = np.interp(np.log(ends), np.log(known[:, 0]), shares)
    first = known[0, 0]
    curve = np.where(ends < first, shares[0] * ends / first, curve)
    curve[-1] = 1.0
    return TableStatistics(feature.mean_length, tuple(ends), tuple(np.maximum.accumulate(curve)), True)


def _joined(rows: int, parts: Sequence[TableStatistics]) -> TableStatistics:
    """Features that share a table: lookups add up, curves are averaged by them."""
    if len(parts) == 1:
        return parts[0]
    total = sum(part.lookups for part in parts)
    ends = _ends(rows)
    weights = [part.lookups / total if total else 1 / len(parts) for part in parts]
    curve = sum(
        (weight * part.share_before(ends) for weight, part in zip(weights, parts, strict=True)),
        np.zeros(len(ends)),
    )
    return TableStatistics(total, tuple(ends), tuple(curve), all(part.hot_first for part in parts))


def _counted(rows: int, ids: NDArray[np.int64], samples: int) -> TableStatistics:
    """Shares of the ids seen, and beside them the rows that no batch held yet: they get the share of ids that
    were seen once (Good and Turing's estimate)."""
    distinct, counts = np.unique(ids, return_counts=True)
    falling = np.sort(counts)[::-1].astype(np.float64)
    unseen = float((falling == 1).sum()) / len(ids) if len(distinct) < rows else 0.0
    mass = np.concatenate(([0.0], np.cumsum(falling) / len(ids) * (1 - unseen)))
    ends = _ends(rows)
    ranks = np.append(np.arange(len(mass), dtype=np.float64), float(rows))
    curve = np.interp(ends, ranks, np.append(mass, 1.0))
    curve[-1] = 1.0
    # Hot rows are first if the first rows serve almost as much as the hottest do.
    head = max(1, len(distinct) // 10)
    first_share = float(counts[distinct < head].sum()) / len(ids)
    hottest_share = float(falling[:head].sum()) / len(ids)
    hot_first = first_share > 0.5 * hottest_share
    return TableStatistics(len(ids) / samples, tuple(ends), tuple(curve), hot_first)
