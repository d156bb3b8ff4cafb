"""Files of ids with their vectors: Parquet, which other systems read and write.

    id           int64                          the raw id
    value        string                         the text that it stands for, where the id holds it
    score        float32                        uses as they count by the table's policy of leaving
    last_batch   int64                          the last batch that used it
    event_time   int64                          seconds since 1970; null where none is kept
    vector       fixed_size_list<float>[dim]
    first, second                               the optimizer's state: a number, or as many as `vector` has

`id`, or `value` in its place, and `vector` are needed; rows are in no order. Both directions take a bounded
number of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from megalith.core.errors import DataError
from megalith.data.prepare.vocabulary import key_texts
from megalith.data.readers.raw_ids import integer_keys, raw_ids
from megalith.embeddings.row_block import WEIGHT, PartSpec, RowBlock
from megalith.ops.text.keys import token_keys

STATES = ("first", "second")
_PIECE_BYTES = 16 << 20


def piece_rows(dim: int) -> int:
    """Rows of so many columns that are read or written at once."""
    return max(1, min(1 << 18, _PIECE_BYTES // (4 * dim + 32)))


def file_schema(dim: int, states: Mapping[str, PartSpec], *, with_values: bool) -> pa.Schema:
    """The columns of a file that is written."""
    vector = pa.list_(pa.float32(), dim)
    kinds: list[tuple[str, pa.DataType]] = [("id", pa.int64())]
    kinds += [("value", pa.string())] if with_values else []
    kinds += [("score", pa.float32()), ("last_batch", pa.int64()), ("event_time", pa.int64())]
    kinds += [("vector", vector)]
    kinds += [(name, vector if spec.per == "element" else pa.float32()) for name, spec in states.items()]
    return pa.schema(kinds)


def to_record_batch(ids: Tensor, parts: Mapping[str, Tensor], schema: pa.Schema) -> pa.RecordBatch:
    """Some ids and their parts, scores in uses, as a file has them."""
    times = parts["time"].numpy()
    columns: dict[str, Any] = {
        "id": ids.numpy(),
        "value": key_texts(integer_keys(ids.numpy())) if "value" in schema.names else None,
        "score": parts["score"].float().numpy(),
        "last_batch": parts["last"].numpy(),
        "event_time": pa.array(times, mask=times == 0),
        "vector": _lists(parts[WEIGHT]),
    }
    for name in STATES:
        if name in schema.names:
            part = parts[name]
            columns[name] = _lists(part) if part.dim() == 2 else part.float().numpy()
    return pa.record_batch([pa.array(columns[name]) for name in schema.names], schema=schema)


def _lists(part: Tensor) -> pa.Array:
    flat = pa.array(part.float().contiguous().view(-1).numpy())
    return pa.FixedSizeListArray.from_arrays(flat, part.shape[1])


class IdFile:
    """A file of ids for a table, checked as it is read; whatever is wrong is one sentence."""

    def __init__(self, path: Path, table: str, dim: int, parts: Mapping[str, PartSpec]) -> None:
        """`parts` are those of the table's rows: `weight`, and the optimizer's state."""
        self.path, self.table, self.dim = path, table, dim
        self._dtype = parts[WEIGHT].dtype
        try:
            self._file = pq.ParquetFile(path)
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; check the path.") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a valid Parquet file ({error}); export it again.") from error
        names = self._file.schema_arrow.names
        self._key = "id" if "id" in names else "value"
        for name in (self._key, "vector"):
            if name not in names:
                needed = "`id` or `value`" if name == self._key else "`vector`"
                raise DataError(f"{path} has no column {needed}; ids are imported with both; add it.")
        self._states = {name: parts[name] for name in STATES if name in parts and name in names}
        optional = [name for name in ("score", "last_batch", "event_time") if name in names]
        self._columns = [self._key, "vector", *optional, *self._states]
        self._first_row = 0

    def blocks(self) -> Iterator[RowBlock]:
        """Ids with their parts, some at a time."""
        try:
            for batch in self._file.iter_batches(
                piece_rows(self.dim), columns=self._columns, use_threads=False
            ):
                if batch.num_rows:
                    yield self._block(batch)
                self._first_row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{self.path} is damaged after row {self._first_row} ({error}); export it again."
            ) from error

    def _block(self, batch: pa.RecordBatch) -> RowBlock:
        parts: dict[str, Tensor] = {WEIGHT: self._vectors(batch, "vector")}
        for name, spec in self._states.items():
            parts[name] = (
                self._vectors(batch, name) if spec.per == "element" else self._numbers(batch, name, None)
            )
        if "score" in self._columns:
            parts["score"] = self._numbers(batch, "score", 1.0)
            self._refuse(parts["score"] < 0, "score", "is below 0")
        if "event_time" in self._columns:
            parts["time"] = self._integers(batch, "event_time")
        if "last_batch" in self._columns:
            parts["last"] = self._integers(batch, "last_batch")
        return RowBlock(torch.from_numpy(self._ids(batch)), (0, self.dim), parts)

    def _ids(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        column = batch.column(self._key)
        if column.null_count:
            raise self._wrong(self._key, int(np.argmax(column.is_null().to_numpy(False))), "is missing")
        if pa.types.is_integer(column.type):
            # Unsigned ids of 2 ** 63 and above keep their bits.
            wide = pa.uint64() if column.type == pa.uint64() else pa.int64()
            numbers: NDArray[np.int64] = column.cast(wide).to_numpy(zero_copy_only=False).view(np.int64)
            return numbers.copy()
        if self._key == "id":
            raise DataError(
                f"{self.path}: column 'id' has type {column.type}; ids are 64-bit integers, texts are a "
                "column `value`."
            )
        texts = column.cast(pa.large_binary() if pa.types.is_binary(column.type) else pa.large_string())
        bounds = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
        data = texts.buffers()[2]
        return raw_ids(token_keys(b"" if data is None else memoryview(data), bounds))

    def _vectors(self, batch: pa.RecordBatch, name: str) -> Tensor:
        column = batch.column(name)
        kind = column.type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise DataError(f"{self.path}: column '{name}' has type {kind} and must hold lists of numbers.")
        if column.null_count:
            raise self._wrong(name, int(np.argmax(column.is_null().to_numpy(False))), "is missing")
        lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
        other = np.flatnonzero(lengths != self.dim)
        if len(other):
            row = int(other[0])
            raise self._wrong(
                name, row, f"has {lengths[row]} numbers, and table '{self.table}' has dim {self.dim}"
            )
        flat = pc.list_flatten(column)
        values = self._floats(flat, name).view(len(column), self.dim)
        # As the table keeps them: half precision has smaller limits.
        kept = values.to(self._dtype) if name == "vector" else values
        self._refuse(~kept.isfinite().all(dim=1), name, "holds a number that is not finite")
        return values

    def _numbers(self, batch: pa.RecordBatch, name: str, missing: float | None) -> Tensor:
        column = batch.column(name)
        if missing is not None:
            column = pc.fill_null(column, missing)
        values = self._floats(column, name)
        self._refuse(~values.isfinite(), name, "is not a finite number")
        return values

    def _floats(self, column: pa.Array, name: str) -> Tensor:
        try:
            # A missing number is NaN, and so refused.
            numbers = column.cast(pa.float32()).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise DataError(f"{self.path}: column '{name}' holds no numbers ({error}).") from error
        return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32).copy())

    def _integers(self, batch: pa.RecordBatch, name: str) -> Tensor:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("s"), safe=False)
        try:
            numbers = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise DataError(f"{self.path}: column '{name}' holds no integers ({error}).") from error
        found = torch.from_numpy(numbers.copy())
        self._refuse((found < 0) | (found >= 2**32), name, "is not from 0 to 4294967295")
        return found

    def _refuse(self, bad: Tensor, column: str, problem: str) -> None:
        if bool(bad.any()):
            raise self._wrong(column, int(bad.int().argmax()), problem)

    def _wrong(self, column: str, row: int, problem: str) -> DataError:
        return DataError(
            f"{self.path}, row {self._first_row + row}: `{column}` {problem}; fix the file and import again."
        )
