"""The formats of tables: a sample of a file, and its rows as record batches, some at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.errors import DataError
from megalith.data.readers.block import BadRow

BATCH_ROWS = 16384
SAMPLE_ROWS = 100_000
SAMPLE_BYTES = 128 << 20
"""A sample ends at so many rows or bytes, whichever comes first."""


class FrameRows(NamedTuple):
    """Rows of a file as Arrow columns."""

    path: Path
    batch: pa.RecordBatch
    lines: NDArray[np.int64]
    """The line or number of each row, from 1."""
    bad_rows: tuple[BadRow, ...] = ()
    """Rows that have no columns at all."""


class FrameFormat(Protocol):
    """Files of one format. `items` is read by one thread at a time; `rows` runs in any thread."""

    is_untyped: bool
    """Whether rows are columns of bytes, whatever types a sample has."""

    def sample(self, path: Path) -> pa.Table:
        """The first rows of a file, with a type for each column."""

    def items(self, path: Path, names: Sequence[str]) -> Iterator[Any]:
        """The rows of a file in pieces, these columns of them."""

    def rows(self, item: Any) -> FrameRows:
        """The rows of one piece."""


class FrameBatch(NamedTuple):
    """A record batch of a file, and the number of its first row."""

    path: Path
    first_row: int
    batch: pa.RecordBatch


class _BatchFormat(ABC):
    """What Parquet and Arrow files share: they hold record batches."""

    kind = ""
    is_untyped = False

    def sample(self, path: Path) -> pa.Table:
        """The first rows of a file."""
        with self._opened(path) as (schema, batches):
            taken: list[pa.RecordBatch] = []
            rows = size = 0
            for batch in batches(None):
                batch = batch.slice(0, SAMPLE_ROWS - rows)
                taken.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                    break
            return pa.Table.from_batches(taken, schema)

    def items(self, path: Path, names: Sequence[str]) -> Iterator[FrameBatch]:
        """Record batches, each with the number of its first row."""
        first_row = 1
        with self._opened(path) as (schema, batches):
            for name in names:
                if name not in schema.names:
                    raise DataError(f"{path} has no column '{name}', which other files have; leave it out.")
            try:
                for batch in batches(list(names)):
                    yield FrameBatch(path, first_row, batch)
                    first_row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise DataError(
                    f"{path} is damaged after row {first_row - 1} ({error}); get it again."
                ) from error
        if first_row == 1:
            raise DataError(f"{path} is empty; leave it out or get it again.")

    def rows(self, item: FrameBatch) -> FrameRows:
        """The batch as it is."""
        lines = np.arange(item.first_row, item.first_row + item.batch.num_rows)
        return FrameRows(item.path, item.batch, lines)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[pa.Schema, Any]]:
        """The schema of a file, and a function from names of columns (None: all) to its batches."""
        try:
            file = self._open(path)
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; check the path.") from error
        except IsADirectoryError as error:
            raise DataError(f"{path} is a folder; name the files in it.") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} is not a valid {self.kind} file ({error}); get it again.") from error
        with file:
            yield self._schema(file), lambda names: self._batches(file, names)

    @abstractmethod
    def _open(self, path: Path) -> Any:
        """The file, to be closed by whoever opened it."""

    @abstractmethod
    def _schema(self, file: Any) -> pa.Schema:
        """Its columns."""

    @abstractmethod
    def _batches(self, file: Any, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Its rows, of some columns or all."""


class ParquetFormat(_BatchFormat):
    """Parquet files."""

    kind = "Parquet"

    def _open(self, path: Path) -> pq.ParquetFile:
        return pq.ParquetFile(path)

    def _schema(self, file: pq.ParquetFile) -> pa.Schema:
        return file.schema_arrow

    def _batches(self, file: pq.ParquetFile, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(BATCH_ROWS, columns=names, use_threads=False)


class ArrowFormat(_BatchFormat):
    """Arrow IPC files, which are also Feather's, and Arrow streams. A batch of the file is read at a time."""

    kind = "Arrow"

    def _open(self, path: Path) -> Any:
        source = pa.memory_map(str(path))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        return _ArrowBatches(source, is_file)

    def _schema(self, file: _ArrowBatches) -> pa.Schema:
        return file.schema

    def _batches(self, file: _ArrowBatches, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in file.batches(names):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)


class _ArrowBatches:
    """The record batches of an Arrow file or stream."""

    def __init__(self, source: pa.MemoryMappedFile, is_file: bool) -> None:
        self._source, self._open = source, pa.ipc.open_file if is_file else pa.ipc.open_stream
        self._is_file = is_file
        self.schema: pa.Schema = self._open(source).schema

    def batches(self, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Every batch, these columns of it."""
        chosen = None if names is None else [self.schema.get_field_index(name) for name in names]
        self._source.seek(0)
        reader = self._open(self._source, options=pa.ipc.IpcReadOptions(included_fields=chosen))
        if self._is_file:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        else:
            yield from reader

    def __enter__(self) -> _ArrowBatches:
        return self

    def __exit__(self, *_: object) -> None:
        # Batches that are still in use hold the mapping; it ends with them.
        pass
