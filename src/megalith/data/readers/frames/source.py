"""The rows of tables as blocks of labels, numbers and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.data.readers.block import BadRow, Bag, Feature, LogBlock, Numeric
from megalith.data.readers.event_time import EventTimeColumn
from megalith.data.readers.frames.columns import ColumnChoice
from megalith.data.readers.frames.files import FrameFormat, FrameRows
from megalith.data.readers.frames.text_lists import split_columns
from megalith.data.readers.frames.types import is_view
from megalith.data.readers.frames.values import (
    RawKind,
    as_string,
    bucket_keys,
    cast_texts,
    read_keys,
    read_numbers,
    read_texts,
    read_times,
    read_vectors,
    row_ends,
)
from megalith.data.readers.key_texts import HashedValues, TextsOf
from megalith.ops.text.keys import Keys

_Floats = NDArray[np.float64]


class FrameSource:
    """The rows of Parquet, Arrow or CSV files, in the order of the files."""

    def __init__(
        self,
        frame_format: FrameFormat,
        paths: Sequence[Path],
        columns: ColumnChoice,
        numeric: Numeric = "log",
        missing_number: float = 0.0,
        raw: Sequence[str] = (),
        event_time: EventTimeColumn | None = None,
    ) -> None:
        """Keys of `raw` integer columns are those of their values, not of their text."""
        self._format = frame_format
        self._raw = frozenset(raw)
        self._event_time = event_time
        self.paths = tuple(paths)
        self.columns = columns
        self._numeric = numeric
        self._missing_number = missing_number

    @property
    def _buckets(self) -> tuple[str, ...]:
        """Numbers that become categories; vectors never do."""
        if self._numeric != "bucket":
            return ()
        return tuple(name for name in self.columns.numbers if name not in self.columns.vectors)

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the numeric columns."""
        kept = [name for name in self.columns.numbers if name not in self._buckets]
        return tuple(column for name in kept for column in self.columns.number_columns(name))

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns."""
        return (
            *(Feature(name) for name in self._buckets),
            *(Feature(name, multi_hot) for name, multi_hot in self.columns.features),
        )

    @property
    def format(self) -> FrameFormat:
        """The reader of the files."""
        return self._format

    @property
    def column_names(self) -> list[str]:
        """The columns that are read."""
        columns, time = self.columns, self._event_time
        optional = [columns.weight, None if time is None else time.name]
        names = [columns.label, *columns.numbers, *(name for name, _ in columns.features)]
        return names + [name for name in optional if name is not None]

    def items(self) -> Iterator[Any]:
        """Pieces of the files, in order."""
        for path in self.paths:
            yield from self._format.items(path, self.column_names)

    def parse(self, item: Any) -> LogBlock:
        """The rows of one piece."""
        rows = self._format.rows(item)
        rows = rows._replace(batch=split_columns(rows.batch, self.columns.separators))
        found = _Problems(rows)
        labels = self._labels(found)
        numbers = {
            name: self._vectors(found, name) if name in self.columns.vectors else self._numbers(found, name)
            for name in self.columns.numbers
        }
        weights = None if self.columns.weight is None else self._weights(found, self.columns.weight)
        times = None if self._event_time is None else self._times(found, self._event_time)
        integers = self._raw_integers(found)
        good = found.good()
        batch = integers if good.all() else integers.filter(pa.array(good))
        columns = [self._output(name, values[..., good]) for name, values in numbers.items()]
        keys = [self._keys(rows.path, batch, name, multi_hot) for name, multi_hot in self.columns.features]
        return LogBlock(
            labels[good].astype(np.float32),
            tuple(column for name, output in columns for column in output if name not in self._buckets),
            (*(bucket_keys(numbers[name][good]) for name in self._buckets), *keys),
            found.bad_rows(),
            None if times is None else times[good],
            None if weights is None else weights[good].astype(np.float32),
            self._texts_of(rows.path, batch),
        )

    def _labels(self, found: _Problems) -> _Floats:
        name = self.columns.label
        labels, bad = read_numbers(found.path, found.batch.column(name), name)
        found.add(bad, lambda row: f"has {found.text(name, row)} as label ({name}), which is not 0 or 1")
        found.add(
            (labels != 0) & (labels != 1),
            lambda row: f"has {labels[row]:g} as label ({name}), which is not 0 or 1",
        )
        return labels

    def _numbers(self, found: _Problems, name: str) -> _Floats:
        values, bad = read_numbers(found.path, found.batch.column(name), name)
        found.add(bad, lambda row: f"has {found.text(name, row)} in column {name}, which is not a number")
        found.add(
            ~(_is_finite(values) | np.isnan(values)),
            lambda row: f"has {values[row]:g} in column {name}, which is not a finite number",
        )
        return values

    def _vectors(self, found: _Problems, name: str) -> _Floats:
        """[length, rows]"""
        length = self.columns.vectors[name]
        values, lengths = read_vectors(found.batch.column(name), length)
        found.add(
            (lengths != length) & (lengths >= 0),
            lambda row: f"has {lengths[row]} values in column {name} instead of {length}",
        )
        there = lengths == length
        found.add(
            there & ~_is_finite(values).all(axis=0),
            lambda row: f"has a value in column {name} that is missing or not finite",
        )
        return values

    def _weights(self, found: _Problems, name: str) -> _Floats:
        values, bad = read_numbers(found.path, found.batch.column(name), name)
        found.add(
            bad | ~(_is_finite(values) & (values >= 0)),
            lambda row: f"has {found.text(name, row)} as weight ({name}), which is no number from 0 on",
        )
        return values

    def _times(self, found: _Problems, column: EventTimeColumn) -> NDArray[np.int64]:
        times, are_times = read_times(found.path, found.batch.column(column.name), column)

        def wrong(row: int) -> str:
            value = found.batch.column(column.name)[row].as_py()
            if value in (None, b"", ""):
                return f"has no value in column {column.name}, the event time"
            shown = found.text(column.name, row) if isinstance(value, bytes) else value
            return f"has {shown} in column {column.name}, which is no time from 1970 to 2106 ({column.unit})"

        found.add(~are_times, wrong)
        return times

    def _raw_integers(self, found: _Problems) -> pa.RecordBatch:
        """The rows, with raw ids that are text in this format as the integers that they are."""
        batch = found.batch
        for name in self._raw.intersection(self.columns.integers) if self._format.is_untyped else ():
            texts = as_string(batch.column(name))
            values, bad = cast_texts(pc.if_else(pc.equal(texts, ""), None, texts), pa.int64())
            where = f"in column {name}, which is no integer"
            found.add(bad, lambda row, name=name, where=where: f"has {found.text(name, row)} {where}")
            batch = batch.set_column(batch.schema.get_field_index(name), name, values)
        return batch

    def _keys(self, path: Path, batch: pa.RecordBatch, name: str, multi_hot: bool) -> Keys | Bag:
        raw: RawKind | None = None
        if name in self._raw:
            # What the values are in all files; a feature with a vocabulary may differ.
            raw = "integers" if name in self.columns.integers else "texts"
        keys = read_keys(path, batch.column(name), name, multi_hot, raw)
        return self._cut(name, keys) if isinstance(keys, Bag) else keys

    def _cut(self, name: str, bag: Bag) -> Bag:
        most = self.columns.max_lengths.get(name)
        return bag if most is None else bag.cut(most, self.columns.keep)

    def _texts_of(self, path: Path, batch: pa.RecordBatch) -> TextsOf:
        def texts_of(values: HashedValues) -> pa.Array:
            name, multi_hot = self.features[values.feature]
            column, places = batch.column(name), values.places
            if multi_hot:
                ends = row_ends(column)
                column = pc.list_flatten(column)
                # The places of all values, cut as their keys were.
                kept = self._cut(name, Bag(np.arange(len(column), dtype=np.uint64), ends)).keys
                places = kept[places].astype(np.int64)
            if is_view(column.type):
                # Arrow cannot take from views.
                column = read_texts(path, column, name)
            return read_texts(path, column.take(pa.array(places)), name).cast(pa.large_binary())

        return texts_of

    def _output(self, name: str, values: _Floats) -> tuple[str, tuple[NDArray[np.float32], ...]]:
        if name in self.columns.vectors:
            return name, tuple(self._filled(row) for row in values)
        if self._numeric == "log":
            values = np.copysign(np.log1p(np.abs(values)), values)
        return name, (self._filled(values),)

    def _filled(self, values: _Floats) -> NDArray[np.float32]:
        return np.where(np.isnan(values), self._missing_number, values).astype(np.float32)


class _Problems:
    """The rows of a piece that cannot be taken, each with the first thing that is wrong with it."""

    def __init__(self, rows: FrameRows) -> None:
        self._rows = rows
        self.path, self.batch = rows.path, rows.batch
        self._said: dict[int, str] = {}

    def add(self, wrong: NDArray[np.bool_], say: Any) -> None:
        """`say` is given the number of a row in the piece."""
        for row in np.flatnonzero(wrong).tolist():
            if row not in self._said:
                self._said[row] = say(row)

    def text(self, name: str, row: int) -> str:
        """A value of the piece as an error shows it."""
        value = self.batch.column(name)[row].as_py()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "backslashreplace")
        return "nothing" if value in (None, "") else f"'{value!s:.24}'"

    def good(self) -> NDArray[np.bool_]:
        """Which rows can be taken."""
        good = np.ones(self.batch.num_rows, bool)
        good[list(self._said)] = False
        return good

    def bad_rows(self) -> tuple[BadRow, ...]:
        """Those that cannot, in the order of the file."""
        before = np.concatenate([[0], np.cumsum(self.good())])
        bad = [
            BadRow(str(self.path), int(self._rows.lines[row]), said, int(before[row]))
            for row, said in self._said.items()
        ]
        bad += [other._replace(rows_before=int(before[other.rows_before])) for other in self._rows.bad_rows]
        return tuple(sorted(bad, key=lambda one: one.line))


def _is_finite(values: _Floats) -> NDArray[np.bool_]:
    """Whether numbers are finite as the float32 that they become."""
    with np.errstate(over="ignore"):
        return np.isfinite(values.astype(np.float32))
