"""Rows of Parquet files: floats become numeric, integers and strings categorical, lists multi-hot.

Integers become keys through their decimal text, so a data set prepared from Parquet and one prepared from the
same values as text have the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.config import Config
from megalith.core.errors import ConfigError, DataError, nearest
from megalith.data.readers.block import BadRow, Bag, Feature, LogBlock, Numeric
from megalith.data.readers.event_time import EventTimeColumn, is_time, refuse_type, seconds, unit_of_integers
from megalith.data.readers.raw_ids import integer_keys
from megalith.ops.text.keys import Keys, token_keys

_BATCH_ROWS = 16384
RawKind = Literal["integers", "texts"]


class ColumnChoice(Config):
    """Which columns are what."""

    label: str
    numbers: tuple[str, ...]
    features: tuple[tuple[str, bool], ...]
    """Name and whether it is multi-hot, in the order of the file."""
    integers: tuple[str, ...] = ()
    """Features that hold integers: raw ids of these are their values."""


class _Item(NamedTuple):
    path: Path
    first_row: int
    batch: pa.RecordBatch


def choose_columns(
    path: Path,
    label: str,
    numbers: Sequence[str] = (),
    categories: Sequence[str] = (),
    dropped: Sequence[str] = (),
) -> ColumnChoice:
    """The columns of a file by type; `numbers` and `categories` say otherwise, `dropped` leaves out."""
    with _open(path) as file:
        schema = file.schema_arrow
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path} has two columns named '{twice}'; rename one.")
    for name in (label, *numbers, *categories, *dropped):
        if name not in schema.names:
            raise ConfigError(f"{path} has no column '{name}'; {nearest(name, schema.names)}")
    chosen: list[str] = []
    features: list[tuple[str, bool]] = []
    for field in schema:
        name, kind = field.name, field.type
        if name == label or name in dropped:
            continue
        value = kind.value_type if _is_list(kind) or pa.types.is_dictionary(kind) else kind
        is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        if name in numbers or (is_number and name not in categories):
            if not (is_number or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
                raise ConfigError(
                    f"Column '{name}' of {path} has type {kind}, which is not a number; drop it."
                )
            chosen.append(name)
        elif _is_category(value):
            features.append((name, _is_list(kind)))
        else:
            raise ConfigError(
                f"Column '{name}' of {path} has type {kind}, which is neither a number nor a category; "
                f"leave it out with --drop {name}."
            )
    integers = tuple(name for name, _ in features if _is_integer(schema.field(name).type))
    return ColumnChoice(label=label, numbers=tuple(chosen), features=tuple(features), integers=integers)


def choose_event_time(path: Path, name: str) -> EventTimeColumn:
    """What the values of a column of times are: by its type, of integers by the first."""
    with _open(path) as file:
        if name not in file.schema_arrow.names:
            raise ConfigError(f"{path} has no column '{name}'; {nearest(name, file.schema_arrow.names)}")
        kind = file.schema_arrow.field(name).type
        if is_time(kind):
            return EventTimeColumn(name=name, unit="timestamps")
        if not pa.types.is_integer(kind):
            raise refuse_type(str(path), name, kind)
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
            given = batch.column(0).drop_null()
            if len(given):
                return EventTimeColumn(name=name, unit=unit_of_integers(given[0].as_py()))
    raise ConfigError(f"Column '{name}' of {path} holds no value; name another column of event times.")


class ParquetSource:
    """The rows of Parquet files, in the order of the files."""

    def __init__(
        self,
        paths: Sequence[Path],
        columns: ColumnChoice,
        numeric: Numeric = "log",
        missing_number: float = 0.0,
        raw: Sequence[str] = (),
        event_time: EventTimeColumn | None = None,
    ) -> None:
        """Keys of `raw` integer columns are those of their values, not of their text."""
        self._raw = frozenset(raw)
        self._event_time = event_time
        self.paths = tuple(paths)
        self.columns = columns
        self._numeric = numeric
        self._missing_number = missing_number

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the numeric columns."""
        return () if self._numeric == "bucket" else self.columns.numbers

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns."""
        buckets = self.columns.numbers if self._numeric == "bucket" else ()
        return (
            *(Feature(name) for name in buckets),
            *(Feature(name, multi_hot) for name, multi_hot in self.columns.features),
        )

    def items(self) -> Iterator[_Item]:
        """Record batches, each with the number of its first row."""
        names = [self.columns.label, *self.columns.numbers, *(name for name, _ in self.columns.features)]
        names += [] if self._event_time is None else [self._event_time.name]
        for path in self.paths:
            with _open(path) as file:
                for name in names:
                    if name not in file.schema_arrow.names:
                        raise DataError(
                            f"{path} has no column '{name}', which other files have; leave it out."
                        )
                if file.metadata.num_rows == 0:
                    raise DataError(f"{path} is empty; leave it out or get it again.")
                first_row = 1
                try:
                    for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
                        yield _Item(path, first_row, batch)
                        first_row += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    raise DataError(
                        f"{path} is damaged after row {first_row - 1} ({error}); get it again."
                    ) from error

    def parse(self, item: _Item) -> LogBlock:
        """The rows of one record batch."""
        path, first_row, batch = item
        good, problems = self._check(item)
        bad = [
            BadRow(str(path), first_row + int(row), problems[int(row)], int(good[:row].sum()))
            for row in np.flatnonzero(~good)
        ]
        kept = batch if not bad else batch.filter(pa.array(good))
        labels = _numbers(path, kept, self.columns.label).astype(np.float32)
        numbers = [_numbers(path, kept, name) for name in self.columns.numbers]
        keys = [
            _keys(path, kept, name, multi_hot, self._raw_kind(name))
            for name, multi_hot in self.columns.features
        ]
        times = None if self._event_time is None else self._times(path, kept, self._event_time)[0]
        if self._numeric == "bucket":
            buckets = [_bucket_keys(column) for column in numbers]
            return LogBlock(labels, (), (*buckets, *keys), tuple(bad), times)
        transformed = tuple(self._transform(column) for column in numbers)
        return LogBlock(labels, transformed, tuple(keys), tuple(bad), times)

    def _raw_kind(self, name: str) -> RawKind | None:
        """What the values of a feature with raw ids are in all files; None where it has a vocabulary."""
        if name not in self._raw:
            return None
        return "integers" if name in self.columns.integers else "texts"

    def _check(self, item: _Item) -> tuple[NDArray[np.bool_], dict[int, str]]:
        path, _, batch = item
        labels = _numbers(path, batch, self.columns.label)
        problems = {
            int(row): f"has {labels[row]:g} as label ({self.columns.label}), which is not 0 or 1"
            for row in np.flatnonzero((labels != 0) & (labels != 1))
        }
        for name in self.columns.numbers:
            values = _numbers(path, batch, name)
            with np.errstate(over="ignore"):
                finite = np.isfinite(values.astype(np.float32)) | np.isnan(values)
            for row in np.flatnonzero(~finite):
                problems.setdefault(
                    int(row), f"has {values[row]:g} in column {name}, which is not a finite number"
                )
        if self._event_time is not None:
            name, unit = self._event_time.name, self._event_time.unit
            _, are_times = self._times(path, batch, self._event_time)
            for row in np.flatnonzero(~are_times):
                value = batch.column(name)[int(row)].as_py()
                wrong = (
                    f"has no value in column {name}, the event time"
                    if value is None
                    else f"has {value} in column {name}, which is no time from 1970 to 2106 ({unit})"
                )
                problems.setdefault(int(row), wrong)
        good = np.ones(batch.num_rows, bool)
        good[list(problems)] = False
        return good, problems

    def _times(
        self, path: Path, batch: pa.RecordBatch, column: EventTimeColumn
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Event times in seconds, and which of them are some."""
        values = batch.column(column.name)
        right = is_time(values.type) if column.unit == "timestamps" else pa.types.is_integer(values.type)
        if not right:
            raise DataError(
                f"{path}: column '{column.name}' has type {values.type}, other than in the first file, where "
                f"event times are {column.unit}; convert it."
            )
        return seconds(values, column.unit)

    def _transform(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        if self._numeric == "log":
            values = np.copysign(np.log1p(np.abs(values)), values)
        return np.where(np.isnan(values), self._missing_number, values).astype(np.float32)


def _numbers(path: Path, batch: pa.RecordBatch, name: str) -> NDArray[np.float64]:
    """A column as float64, missing values as NaN."""
    try:
        return batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(f"{path}: column '{name}' holds no numbers ({error}); leave it out.") from error


def _keys(path: Path, batch: pa.RecordBatch, name: str, multi_hot: bool, raw: RawKind | None) -> Keys | Bag:
    column = batch.column(name)
    # An integer and its text have different raw ids: all files must agree.
    other_raw = raw is not None and _is_integer(column.type) != (raw == "integers")
    if _is_list(column.type) != multi_hot or other_raw:
        raise DataError(
            f"{path}: column '{name}' has type {column.type}, other than in the first file; leave it out."
        )
    if not multi_hot:
        return _scalar_keys(path, column, name, raw)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    # A null inside a list says nothing; it is kept as the missing value so that lengths stay.
    return Bag(_scalar_keys(path, pc.list_flatten(column), name, raw), np.cumsum(lengths, dtype=np.int64))


def _scalar_keys(path: Path, column: pa.Array, name: str, raw: RawKind | None) -> Keys:
    if raw == "integers":
        unsigned = column.type == pa.uint64()
        values = pc.fill_null(column.cast(pa.uint64() if unsigned else pa.int64()), 0)
        keys = integer_keys(values.to_numpy(zero_copy_only=False))
        keys[column.is_null().to_numpy(zero_copy_only=False)] = 0
        return keys
    try:
        texts = pc.fill_null(
            column.cast(pa.large_binary() if _is_binary(column.type) else pa.large_string()), ""
        )
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: column '{name}' cannot be read as categories ({error}); leave it out."
        ) from error
    _, offsets, data = texts.buffers()
    if len(texts) == 0:
        return np.empty(0, np.uint64)
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return token_keys(b"" if data is None else memoryview(data), bounds)


def _bucket_keys(values: NDArray[np.float64]) -> Keys:
    """The same buckets as for text: floor(log(x)^2) + 3 above 2, else floor(x); NaN is a missing value."""
    missing = np.isnan(values)
    logs = np.log(np.maximum(values, 2.0, where=~missing, out=np.full_like(values, 2.0)))
    buckets = np.where(values > 2, np.floor(logs * logs) + 3, np.floor(np.maximum(values, -9999999)))
    texts = pc.fill_null(
        pa.array(np.where(missing, 0, buckets).astype(np.int64), mask=missing).cast(pa.large_string()), ""
    )
    _, offsets, data = texts.buffers()
    return token_keys(memoryview(data), np.frombuffer(offsets, np.int64)[: len(texts) + 1])


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; name the files in it.") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a valid Parquet file ({error}); get it again.") from error


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_integer(kind: pa.DataType) -> bool:
    value = kind.value_type if _is_list(kind) or pa.types.is_dictionary(kind) else kind
    return pa.types.is_integer(value)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_category(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_boolean(kind)
        or _is_binary(kind)
        or pa.types.is_floating(kind)
    )
