"""Reads a window's rows from Parquet into flat arrays, and checks every value on the way.

Columns come from Arrow without a copy, are checked in place (a minimum and a maximum), and are gathered in
the window's order. Whatever is wrong becomes a DataError with the file, the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from megalith.core.errors import DataError
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import Dataset, DatasetSchema
from megalith.data.loader.checks import (
    AGAIN,
    column_names,
    not_a_label,
    not_a_time,
    not_a_weight,
    not_finite,
    outside,
    read_footer,
)
from megalith.data.loader.columns import Array, BagColumn, WindowColumns, permute_bags
from megalith.data.loader.plan import RowGroup, RowGroupSlice, ShuffleWindow
from megalith.data.places import open_parquet, place_text

_INT32_LIMIT, _INT64_LIMIT = 2**31, 2**63


class RowReader(Protocol):
    """Rows that a loader reads: which row groups there are, and the rows of windows of them."""

    schema: DatasetSchema
    groups: list[RowGroup]
    rows: int
    origin: dict[str, Any]
    """What the order of rows depends on besides these; kept in the loader's state."""

    def locate(self, window: ShuffleWindow) -> Any:
        """Where the rows of a window are: all that `read_at` takes, also in another process."""

    def read_at(self, place: Any, order: npt.NDArray[np.int64] | None) -> WindowColumns:
        """The rows of a window in `order`, which may leave some out; threads may call it."""


class ParquetRows:
    """The Parquet files of some splits: their row groups, and a reader of windows that threads may share."""

    def __init__(self, dataset: Dataset, splits: Sequence[str]) -> None:
        self.schema = dataset.schema
        self.origin: dict[str, Any] = {}
        self._paths: list[Path] = []
        self._metadata: list[pq.FileMetaData] = []
        self.groups: list[RowGroup] = []
        for split in splits:
            rows = 0
            for path in dataset.files(split):
                metadata = read_footer(path, self.schema)
                self._add(path, metadata)
                rows += metadata.num_rows
            expected = dataset.split(split).rows
            if rows != expected:
                raise DataError(
                    f"{dataset.folder}: the files of split '{split}' hold {rows:,} rows and schema.json says "
                    f"{expected:,}; {AGAIN}."
                )
        self.rows = sum(group.rows for group in self.groups)
        self.one_hot = [feature for feature in self.schema.categorical if not feature.multi_hot]
        self.multi_hot = [feature for feature in self.schema.categorical if feature.multi_hot]
        small = all((feature.num_ids or _INT64_LIMIT) <= _INT32_LIMIT for feature in self.one_hot)
        self._id_type = np.int32 if small else np.int64
        self._names = column_names(self.schema)

    def _add(self, path: Path, metadata: pq.FileMetaData) -> None:
        file, first_row = len(self._paths), 0
        self._paths.append(path)
        self._metadata.append(metadata)
        for index in range(metadata.num_row_groups):
            rows = metadata.row_group(index).num_rows
            if rows:
                self.groups.append(RowGroup(file, index, first_row, rows))
            first_row += rows

    def locate(self, window: ShuffleWindow) -> ShuffleWindow:
        """The window itself: its row groups are of files that all readers know."""
        return window

    def read_at(self, place: ShuffleWindow, order: npt.NDArray[np.int64] | None) -> WindowColumns:
        """The window's rows in `order`, which may leave some out; None takes all in file order."""
        window, tables = place, self._tables(place)
        schema = self.schema
        rows = window.rows if order is None else len(order)

        def gather(name: str, check: Callable[[Array], Array], out: Array) -> None:
            column = out if order is None else np.empty(window.rows, out.dtype)
            begin = 0
            for part, table in zip(window.parts, tables, strict=True):
                array = self._flat(part, name, table)
                self._refuse(part, name, array, check)
                column[begin : begin + len(array)] = array
                begin += len(array)
            if order is not None:
                np.take(column, order, out=out, mode="clip")

        dense = np.empty((len(schema.numeric), rows), np.float32)
        for position, name in enumerate(schema.numeric):
            gather(name, not_finite, dense[position])
        labels = np.empty(rows, np.float32)
        gather(schema.label, not_a_label, labels)
        weights = None
        if schema.weight is not None:
            weights = np.empty(rows, np.float32)
            gather(schema.weight, not_a_weight, weights)
        times = None
        if schema.event_time is not None:
            times = np.empty(rows, np.int64)
            gather(schema.event_time, not_a_time, times)
        ids = np.empty((len(self.one_hot), rows), self._id_type)
        for position, feature in enumerate(self.one_hot):
            gather(feature.name, outside(feature.num_ids), ids[position])
        bags = tuple(self._bags(feature, window, tables, order) for feature in self.multi_hot)
        return WindowColumns(dense, labels, weights, ids, bags, times)

    def _tables(self, window: ShuffleWindow) -> list[pa.Table]:
        tables = []
        file, reader = -1, None
        for part in window.parts:
            if part.group.file != file:
                file = part.group.file
                reader = self._reader(file)
            tables.append(self._read_part(reader, part))
        return tables

    def _reader(self, file: int) -> pq.ParquetFile:
        path = self._paths[file]
        try:
            return open_parquet(path, self._metadata[file])
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{place_text(path)} can no longer be read; {AGAIN}.") from error

    def _read_part(self, reader: pq.ParquetFile | None, part: RowGroupSlice) -> pa.Table:
        assert reader is not None
        group = part.group
        try:
            # Our own threads each decode a window; Arrow's pool inside them would only compete with them.
            table = reader.read_row_group(group.index, columns=self._names, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            where = f"rows {group.first_row:,} to {group.first_row + group.rows - 1:,}"
            name = self._damaged(reader, group)
            raise DataError(
                f"{self._paths[group.file]}, column '{name}', {where}: the data is damaged; {AGAIN}."
            ) from error
        return table if part.rows == group.rows else table.slice(part.start, part.rows)

    def _damaged(self, reader: pq.ParquetFile, group: RowGroup) -> str:
        """The column at which a row group breaks."""
        for name in self._names:
            try:
                reader.read_row_group(group.index, columns=[name], use_threads=False)
            except (OSError, pa.ArrowException):
                return name
        return self._names[0]

    def _flat(self, part: RowGroupSlice, name: str, table: pa.Table) -> Array:
        column = table.column(name)
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy()))
            raise self._error(part, name, row, "the value is missing")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        return column.to_numpy()

    def _bags(
        self,
        feature: FeatureSpec,
        window: ShuffleWindow,
        tables: list[pa.Table],
        order: npt.NDArray[np.int64] | None,
    ) -> BagColumn:
        values, lengths = [], []
        for part, table in zip(window.parts, tables, strict=True):
            part_values, part_lengths = self._part_bags(feature, part, table)
            values.append(part_values)
            lengths.append(part_lengths)
        all_values, all_lengths = np.concatenate(values), np.concatenate(lengths)
        return (
            BagColumn(all_values, all_lengths)
            if order is None
            else permute_bags(all_values, all_lengths, order)
        )

    def _part_bags(
        self, feature: FeatureSpec, part: RowGroupSlice, table: pa.Table
    ) -> tuple[Array, npt.NDArray[np.int64]]:
        name = feature.name
        column = table.column(name)
        if column.null_count:
            row = int(np.argmax(column.is_null().to_numpy()))
            raise self._error(part, name, row, "the list is missing")
        # A list view of any kind becomes large_list: one offset type, and a slice's offsets are its own.
        chunks = column.cast(pa.large_list(column.type.value_type)).combine_chunks()
        array = pa.concat_arrays(chunks.chunks) if isinstance(chunks, pa.ChunkedArray) else chunks
        offsets = array.offsets.to_numpy()
        flat = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        lengths = np.diff(offsets)

        def row_of(position: int) -> int:
            return int(np.searchsorted(offsets - offsets[0], position, side="right")) - 1

        if flat.null_count:
            position = int(np.argmax(flat.is_null().to_numpy(zero_copy_only=False)))
            raise self._error(part, name, row_of(position), "an id in the list is missing")
        values = flat.to_numpy()
        bad = outside(feature.num_ids)(values)
        if len(bad):
            position = int(bad[0])
            problem = f"id {values[position]} is outside [0, {feature.num_ids:,})"
            raise self._error(part, name, row_of(position), problem)
        if feature.max_length is not None and len(lengths) and lengths.max() > feature.max_length:
            row = int(np.argmax(lengths > feature.max_length))
            problem = f"{lengths[row]} ids and the schema allows {feature.max_length}"
            raise self._error(part, name, row, problem)
        return values, lengths

    def _refuse(self, part: RowGroupSlice, name: str, array: Array, check: Callable[[Array], Array]) -> None:
        bad = check(array)
        if len(bad):
            row = int(bad[0])
            sizes = {feature.name: feature.num_ids for feature in self.one_hot}
            if name in sizes:
                problem = f"id {array[row]} is outside [0, {sizes[name]:,})"
            elif name == self.schema.label:
                problem = f"label {array[row]} is outside [0, 1]"
            elif name == self.schema.weight:
                problem = f"weight {array[row]} is negative or not finite"
            elif name == self.schema.event_time:
                problem = f"event time {array[row]} is outside the seconds from 1970 to 2106"
            else:
                problem = f"value {array[row]} is not finite"
            raise self._error(part, name, row, problem)

    def _error(self, part: RowGroupSlice, name: str, row: int, problem: str) -> DataError:
        path, row = self._paths[part.group.file], part.group.first_row + part.start + row
        return DataError(f"{path}, column '{name}', row {row:,}: {problem}; fix the source and {AGAIN}.")
