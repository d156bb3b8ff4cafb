"""What a prepared data set looks like: click rate, how often ids repeat, how numbers spread.

One column at a time in one pass, so memory holds the counts of one feature however many rows there are.
`statistics.json`, beside the data, keeps the result for the planner of table placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.config import Config, parse_config
from megalith.core.errors import DataError
from megalith.core.files import read_json_object, write_atomic
from megalith.core.schema import FeatureSpec
from megalith.cost.row_cache.frequencies import from_counts
from megalith.data.dataset import FIRST_ID, MISSING_ID, MISSING_RAW_ID, UNKNOWN_ID, Dataset

STATISTICS_FILE = "statistics.json"
VERSION = 1
COVERED_SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_BATCH_ROWS = 262_144
_BUCKET_BITS = 20


class FeatureStatistics(Config):
    """How often the ids of one categorical feature occur. Shares are of all its values."""

    name: str
    num_ids: int | None
    """Ids declared: the rows its table needs; None where ids are raw."""
    values: int
    mean_length: float
    """Values a row; 1 for a one-hot feature."""
    max_length: int
    empty_share: float
    """Rows without any value (multi-hot)."""
    missing_share: float
    unknown_share: float
    """Values outside the vocabulary."""
    distinct_ids: int
    """Ids seen, without the two that stand for missing and unknown."""
    top_1_share: float
    top_10_share: float
    top_100_share: float
    seen_once_share: float
    """Of the distinct ids, those that occur once."""
    skew: float | None
    """Exponent s of count ~ rank ** -s, fitted where counts are at least 5; None if too few ids are."""
    rows_for_share: dict[str, int]
    """Hottest table rows that together serve this share of the lookups, missing and unknown included."""
    ids_by_count: tuple[tuple[float, float], ...] = ()
    """(ids, values of each): rows of the table that occur about equally often, missing and unknown included.
    Empty in files of earlier releases."""


class NumericStatistics(Config):
    """How the values of one numeric column spread."""

    name: str
    null_share: float
    """Values that are null or not a number."""
    zero_share: float
    """Zeros: prepared data also holds its missing values here."""
    mean: float
    deviation: float
    minimum: float
    maximum: float
    quantiles: dict[str, float]
    """Right to 0.05% of the value: they are read off a histogram of the leading bits."""


class Statistics(Config):
    """The content of `statistics.json`."""

    format: Literal["megalith-statistics"] = "megalith-statistics"
    version: int = VERSION
    source: str
    split: str
    rows: int
    click_rate: float
    best_log_loss: float | None
    features: tuple[FeatureStatistics, ...]
    numeric: tuple[NumericStatistics, ...]


def measure(
    folder: Path, split: str = "train", progress: Callable[[str], None] = lambda column: None
) -> Statistics:
    """Statistics of one split of a prepared data set.

    >>> measure(Path("data")).features[0].top_1_share  # doctest: +SKIP
    0.4989
    """
    if folder.is_file():
        raise DataError(
            f"{folder} is a file, not a prepared data set; run `megalith data prepare` on it first."
        )
    dataset = Dataset(folder)
    schema, known = dataset.schema, dataset.split(split)
    files = dataset.files(split)
    progress(schema.label)
    rows, clicks = 0, 0.0
    for _, column in _batches(files, schema.label):
        rows += len(column)
        clicks += float(np.sum(_floats(column), dtype=np.float64))
    features, numbers = [], []
    for feature in schema.categorical:
        progress(feature.name)
        features.append(_feature(feature, files))
    for name in schema.numeric:
        progress(name)
        numbers.append(_numeric(name, files))
    return Statistics(
        source=schema.source,
        split=split,
        rows=rows,
        click_rate=clicks / rows if rows else 0.0,
        best_log_loss=known.best_log_loss,
        features=tuple(features),
        numeric=tuple(numbers),
    )


def write_statistics(folder: Path, statistics: Statistics) -> None:
    """Writes `statistics.json` beside the data, whole or not at all."""
    write_atomic(folder / STATISTICS_FILE, statistics.model_dump_json(indent=1) + "\n")


def read_statistics(folder: Path) -> Statistics:
    """What `megalith data stats --save` left beside the data."""
    path = folder / STATISTICS_FILE
    fix = f"run `megalith data stats {folder} --save`"
    content = read_json_object(path, fix=fix)
    version = content.get("version")
    if version != VERSION:
        raise DataError(f"{path} has version {version}, this package reads {VERSION}; {fix}.")
    return parse_config(Statistics, content, str(path), fix, DataError)


class RawIdCounts:
    """Counts of ids that may be any 64-bit values; memory grows with the distinct ones."""

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, ids: NDArray[Any]) -> None:
        """Counts some more."""
        found, counts = np.unique(ids.astype(np.int64), return_counts=True)
        both = np.concatenate([self._ids, found])
        self._ids, places = np.unique(both, return_inverse=True)
        self._counts = np.bincount(places, np.concatenate([self._counts, counts])).astype(np.int64)

    def from_first_id(self) -> NDArray[np.uint32]:
        """Counts as those of prepared ids are kept: of missing values, of unknown ones, of all others."""
        missing = self._ids == MISSING_RAW_ID
        head = [self._counts[missing].sum(), 0]
        return np.concatenate([head, self._counts[~missing]]).astype(np.uint32)


def skew_of(counts: NDArray[np.int64]) -> float | None:
    """The slope of log count over log rank, at ranks spread evenly in the logarithm so that the tail does not
    outvote the head; `counts` fall."""
    frequent = counts[counts >= 5]
    if len(frequent) < 10:
        return None
    ranks = np.unique(np.geomspace(1, len(frequent), 50).astype(np.int64))
    slope = np.polyfit(np.log(ranks), np.log(frequent[ranks - 1]), 1)[0]
    return float(-slope)


def _feature(feature: FeatureSpec, files: list[Path]) -> FeatureStatistics:
    counts = np.zeros(feature.num_ids or 0, dtype=np.uint32)
    raw = RawIdCounts()
    rows, empty, longest = 0, 0, 0
    for path, column in _batches(files, feature.name):
        rows += len(column)
        ids = column
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lengths = np.asarray(column.value_lengths().fill_null(0))
            empty += int((lengths == 0).sum())
            longest = max(longest, int(lengths.max(initial=0)))
            ids = column.flatten()
        else:
            longest = 1
        if feature.is_raw:
            raw.add(ids.to_numpy(zero_copy_only=False))
        else:
            _count(counts, ids.fill_null(MISSING_ID).to_numpy(zero_copy_only=False), path, feature)
    if feature.is_raw:
        counts = raw.from_first_id()
    values = int(counts.sum(dtype=np.int64))
    total = max(values, 1)
    hot = np.sort(counts[counts > 0])[::-1].astype(np.int64)
    seen = counts[FIRST_ID:]
    falling = np.sort(seen[seen > 0])[::-1].astype(np.int64)
    tops = [float(falling[:most].sum()) / total for most in (1, 10, 100)]
    covered = np.cumsum(hot)
    classes = from_counts(hot, rows, whole=True)
    return FeatureStatistics(
        name=feature.name,
        num_ids=feature.num_ids,
        values=values,
        mean_length=values / max(rows, 1),
        max_length=longest,
        empty_share=empty / max(rows, 1),
        missing_share=float(counts[MISSING_ID]) / total,
        unknown_share=float(counts[UNKNOWN_ID]) / total if len(counts) > UNKNOWN_ID else 0.0,
        distinct_ids=len(falling),
        top_1_share=tops[0],
        top_10_share=tops[1],
        top_100_share=tops[2],
        seen_once_share=float((falling == 1).mean()) if len(falling) else 0.0,
        skew=skew_of(falling),
        rows_for_share={
            str(share): int(np.searchsorted(covered, share * values)) + 1 if values else 0
            for share in COVERED_SHARES
        },
        ids_by_count=tuple(zip(classes.ids.tolist(), classes.accesses.tolist(), strict=True)),
    )


def _count(counts: NDArray[np.uint32], ids: NDArray[Any], path: Path, feature: FeatureSpec) -> None:
    """Adds these ids to the counts."""
    if not len(ids):
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= len(counts):
        raise DataError(
            f"{path}: column '{feature.name}' holds id {low if low < 0 else high}, outside the "
            f"{len(counts)} declared; run `megalith data prepare` again."
        )
    if len(counts) <= len(ids):
        counts += np.bincount(ids, minlength=len(counts)).astype(np.uint32)
    else:
        # Many more ids than values: touch only those that occur.
        np.add.at(counts, ids, np.uint32(1))


def _numeric(name: str, files: list[Path]) -> NumericStatistics:
    buckets = np.zeros(1 << _BUCKET_BITS, dtype=np.int64)
    rows = nulls = zeros = 0
    total = squares = 0.0
    smallest, largest = np.inf, -np.inf
    for _, column in _batches(files, name):
        rows += len(column)
        values = _floats(column)
        values = values[np.isfinite(values)]
        nulls += len(column) - len(values)
        if not len(values):
            continue
        zeros += int((values == 0).sum())
        wide = values.astype(np.float64)
        total += float(wide.sum())
        squares += float((wide * wide).sum())
        smallest, largest = min(smallest, float(values.min())), max(largest, float(values.max()))
        buckets += np.bincount(_bucket(values), minlength=len(buckets))
    present = rows - nulls
    mean = total / present if present else 0.0
    return NumericStatistics(
        name=name,
        null_share=nulls / max(rows, 1),
        zero_share=zeros / max(rows, 1),
        mean=mean,
        deviation=float(np.sqrt(max(squares / present - mean * mean, 0.0))) if present else 0.0,
        minimum=smallest if present else 0.0,
        maximum=largest if present else 0.0,
        quantiles={str(share): _quantile(buckets, share) for share in QUANTILES} if present else {},
    )


def _bucket(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """The leading bits of each float, made to sort like the floats: a histogram over every magnitude."""
    # Adding 0 turns -0 into 0, which must share its bucket.
    bits = (values + np.float32(0.0)).view(np.uint32)
    ordered = np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(1 << 31))
    return (ordered >> np.uint32(32 - _BUCKET_BITS)).astype(np.int64)


def _quantile(buckets: NDArray[np.int64], share: float) -> float:
    covered = np.cumsum(buckets)
    bucket = int(np.searchsorted(covered, share * covered[-1]))
    ordered = np.array([bucket << (32 - _BUCKET_BITS)], dtype=np.uint32)
    bits = np.where(ordered >> np.uint32(31), ordered & np.uint32(0x7FFFFFFF), ~ordered)
    return float(bits.astype(np.uint32).view(np.float32)[0])


def _floats(column: pa.Array) -> NDArray[np.float32]:
    return np.asarray(column.cast(pa.float32()).to_numpy(zero_copy_only=False), dtype=np.float32)


def _batches(files: list[Path], name: str) -> Iterator[tuple[Path, pa.Array]]:
    """One column of a split, in pieces."""
    for path in files:
        try:
            with pq.ParquetFile(path) as parquet:
                if name not in parquet.schema_arrow.names:
                    raise DataError(f"{path} has no column '{name}'; run `megalith data prepare` again.")
                for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=[name]):
                    yield path, batch.column(0)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is damaged; run `megalith data prepare` again.") from error
