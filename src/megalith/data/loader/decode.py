"""Reads a window's rows from Parquet into flat arrays, and checks every value on the way.

Columns come from Arrow without a copy, are checked in place (a minimum and a maximum), and are gathered in
the window's order. Whatever is wrong becomes a DataError with the file, the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from megalith.core.errors import DataError
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import Dataset, DatasetSchema
from megalith.data.loader.plan import Part, RowGroup, Window

Array = npt.NDArray[Any]

AGAIN = "run `megalith data prepare` again"
_INT32_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Bags:
    """A multi-hot column: the ids of all rows, row after row, and how many each row has."""

    values: Array
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows of a window, column after column."""

    dense: npt.NDArray[np.float32]
    """[num_dense, rows]"""
    labels: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32] | None
    ids: Array
    """[one-hot features, rows], int32 where every id fits"""
    bags: tuple[Bags, ...]
    """One for each multi-hot feature."""

    @property
    def rows(self) -> int:
        return len(self.labels)


class ParquetRows:
    """The Parquet files of some splits: their row groups, and a reader of windows that threads may share."""

    def __init__(self, dataset: Dataset, splits: Sequence[str]) -> None:
        self.schema = dataset.schema
        self._paths: list[Path] = []
        self._metadata: list[pq.FileMetaData] = []
        self.groups: list[RowGroup] = []
        for split in splits:
            rows = 0
            for path in dataset.files(split):
                metadata = _open(path, self.schema)
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
        small = all(feature.num_ids <= _INT32_LIMIT for feature in self.one_hot)
        self._id_type = np.int32 if small else np.int64
        self._names = _column_names(self.schema)

    def _add(self, path: Path, metadata: pq.FileMetaData) -> None:
        file, first_row = len(self._paths), 0
        self._paths.append(path)
        self._metadata.append(metadata)
        for index in range(metadata.num_row_groups):
            rows = metadata.row_group(index).num_rows
            if rows:
                self.groups.append(RowGroup(file, index, first_row, rows))
            first_row += rows

    def read(self, window: Window, order: npt.NDArray[np.int64] | None) -> Columns:
        """The window's rows in `order`, which may leave some out; None takes all as they lie."""
        tables = self._tables(window)
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
            gather(name, _not_finite, dense[position])
        labels = np.empty(rows, np.float32)
        gather(schema.label, _not_a_label, labels)
        weights = None
        if schema.weight is not None:
            weights = np.empty(rows, np.float32)
            gather(schema.weight, _not_a_weight, weights)
        ids = np.empty((len(self.one_hot), rows), self._id_type)
        for position, feature in enumerate(self.one_hot):
            gather(feature.name, _outside(feature.num_ids), ids[position])
        bags = tuple(self._bags(feature, window, tables, order) for feature in self.multi_hot)
        return Columns(dense, labels, weights, ids, bags)

    def _tables(self, window: Window) -> list[pa.Table]:
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
            return pq.ParquetFile(path, metadata=self._metadata[file], page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} can no longer be read; {AGAIN}.") from error

    def _read_part(self, reader: pq.ParquetFile | None, part: Part) -> pa.Table:
        assert reader is not None
        group = part.group
        try:
            # Our own threads each decode a window; Arrow's pool inside them would only get in the way.
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

    def _flat(self, part: Part, name: str, table: pa.Table) -> Array:
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
        window: Window,
        tables: list[pa.Table],
        order: npt.NDArray[np.int64] | None,
    ) -> Bags:
        values, lengths = [], []
        for part, table in zip(window.parts, tables, strict=True):
            part_values, part_lengths = self._part_bags(feature, part, table)
            values.append(part_values)
            lengths.append(part_lengths)
        all_values, all_lengths = np.concatenate(values), np.concatenate(lengths)
        return (
            Bags(all_values, all_lengths) if order is None else permute_bags(all_values, all_lengths, order)
        )

    def _part_bags(
        self, feature: FeatureSpec, part: Part, table: pa.Table
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
        bad = _outside(feature.num_ids)(values)
        if len(bad):
            position = int(bad[0])
            problem = f"id {values[position]} is outside [0, {feature.num_ids:,})"
            raise self._error(part, name, row_of(position), problem)
        if feature.max_length is not None and len(lengths) and lengths.max() > feature.max_length:
            row = int(np.argmax(lengths > feature.max_length))
            problem = f"{lengths[row]} ids and the schema allows {feature.max_length}"
            raise self._error(part, name, row, problem)
        return values, lengths

    def _refuse(self, part: Part, name: str, array: Array, check: Callable[[Array], Array]) -> None:
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
            else:
                problem = f"value {array[row]} is not finite"
            raise self._error(part, name, row, problem)

    def _error(self, part: Part, name: str, row: int, problem: str) -> DataError:
        path, row = self._paths[part.group.file], part.group.first_row + part.start + row
        return DataError(f"{path}, column '{name}', row {row:,}: {problem}; mend the source and {AGAIN}.")


def permute_bags(values: Array, lengths: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> Bags:
    """The bags in another order.

    >>> permute_bags(np.array([5, 6, 7]), np.array([1, 0, 2]), np.array([2, 0, 1])).values.tolist()
    [6, 7, 5]
    """
    starts = np.cumsum(lengths) - lengths
    new_lengths = lengths[order]
    new_starts = np.cumsum(new_lengths) - new_lengths
    # Position i of the result, in bag b, comes from i - new_starts[b] + starts[order[b]].
    source = np.repeat(starts[order] - new_starts, new_lengths)
    source += np.arange(len(source))
    return Bags(values[source], new_lengths)


def _column_names(schema: DatasetSchema) -> list[str]:
    weight = [] if schema.weight is None else [schema.weight]
    return [schema.label, *weight, *schema.numeric, *schema.feature_names]


def _open(path: Path, schema: DatasetSchema) -> pq.FileMetaData:
    """The footer of a Parquet file whose columns are what the schema says they are."""
    try:
        metadata = pq.read_metadata(path)
        fields = metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a whole Parquet file (cut off or damaged); {AGAIN}.") from error
    bags = {feature.name for feature in schema.categorical if feature.multi_hot}
    ids = set(schema.feature_names) - bags
    for name in _column_names(schema):
        if name not in fields.names:
            raise DataError(f"{path}, column '{name}' is missing; {AGAIN}.")
        found = fields.field(name).type
        if name in bags:
            right, wanted = _is_list(found) and pa.types.is_integer(found.value_type), "lists of integers"
        elif name in ids:
            right, wanted = pa.types.is_integer(found), "integers"
        else:
            plain = pa.types.is_floating(found) or pa.types.is_integer(found)
            right, wanted = plain or pa.types.is_boolean(found), "numbers"
        if not right:
            raise DataError(f"{path}, column '{name}' has type {found} and must hold {wanted}; {AGAIN}.")
    return metadata


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


# Each check gives the positions of bad values; a minimum and a maximum settle the usual case of none.

_NONE: Array = np.empty(0, np.int64)


def _outside(num_ids: int) -> Callable[[Array], Array]:
    def check(array: Array) -> Array:
        if not len(array) or (array.min() >= 0 and array.max() < num_ids):
            return _NONE
        return np.flatnonzero((array < 0) | (array >= num_ids))

    return check


def _not_finite(array: Array) -> Array:
    # Not-a-number passes through a minimum; infinities are the minimum or the maximum.
    if np.isfinite(array.min()) and np.isfinite(array.max()):
        return _NONE
    return np.flatnonzero(~np.isfinite(array))


def _not_a_label(array: Array) -> Array:
    return _NONE if array.min() >= 0 and array.max() <= 1 else np.flatnonzero(~((array >= 0) & (array <= 1)))


def _not_a_weight(array: Array) -> Array:
    if array.min() >= 0 and np.isfinite(array.max()):
        return _NONE
    return np.flatnonzero(~((array >= 0) & np.isfinite(array)))
