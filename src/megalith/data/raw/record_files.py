"""Parquet, CSV and Arrow files as record batches of some of their columns, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from megalith.core.errors import DataError, nearest
from megalith.data.raw.row_source import refuse_empty

BATCH_ROWS = 16384
_CSV_BLOCK_BYTES = 4 << 20


class Records(NamedTuple):
    """Some rows of a file or a frame, and the number of the first of them, from 1."""

    where: str
    first_row: int
    batch: pa.RecordBatch


class ColumnNames(NamedTuple):
    """What is read: the columns of the model, and those that go with scores."""

    read: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @property
    def all(self) -> list[str]:
        """Each once."""
        return list(dict.fromkeys((*self.read, *self.kept)))

    def check(self, where: str, names: Sequence[str]) -> None:
        """Refuses a table that lacks one of them, or has one twice."""
        listed = list(names)
        for name in self.all:
            if name not in listed:
                why = "which the model reads" if name in self.read else "which --keep names"
                raise DataError(f"{where} has no column '{name}', {why}; {nearest(name, listed)}")
            if listed.count(name) > 1:
                raise DataError(
                    f"{where} has {listed.count(name)} columns named '{name}'; rename all but one."
                )


def table_records(table: pa.Table, columns: ColumnNames, where: str = "the frame") -> Iterator[Records]:
    """The rows of a table in memory."""
    columns.check(where, table.column_names)
    first_row = 1
    for batch in table.select(columns.all).to_batches(max_chunksize=BATCH_ROWS):
        if batch.num_rows:
            yield Records(where, first_row, batch)
            first_row += batch.num_rows


def file_records(path: Path, columns: ColumnNames) -> Iterator[Records]:
    """The rows of a file by its ending; `is_record_file` says for which there is a reader."""
    rows = 0
    try:
        for batch in _READERS[_ending(path)](path, columns):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                piece = batch.slice(start, BATCH_ROWS)
                yield Records(str(path), rows + 1, piece)
                rows += piece.num_rows
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; name the files in it.") from error
    except PermissionError as error:
        raise DataError(f"No permission to read {path}; change its permissions.") from error
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} cannot be read after row {rows} ({reason}); get it again.") from error
    if rows == 0:
        raise refuse_empty(str(path))


def is_record_file(path: Path) -> bool:
    """Whether a file's name says that it is a table: Parquet, CSV or Arrow."""
    return _ending(path) in _READERS


def _ending(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return Path(name).suffix


def _parquet(path: Path, columns: ColumnNames) -> Iterator[pa.RecordBatch]:
    if path.is_dir():
        raise IsADirectoryError
    with pq.ParquetFile(path) as file:
        columns.check(str(path), file.schema_arrow.names)
        yield from file.iter_batches(BATCH_ROWS, columns=columns.all, use_threads=False)


def _csv(path: Path, columns: ColumnNames) -> Iterator[pa.RecordBatch]:
    """Every value as text: what it stands for, the column that it goes to decides."""
    with path.open("rb") as file:
        if not file.read(1):
            raise refuse_empty(str(path))

    def opened(include: Sequence[str]) -> pc_csv.CSVStreamingReader:
        return pc_csv.open_csv(
            path,
            read_options=pc_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False),
            convert_options=pc_csv.ConvertOptions(
                column_types={name: pa.string() for name in columns.all},
                include_columns=list(include),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )

    with opened(()) as header:
        columns.check(str(path), header.schema.names)
    with opened(columns.all) as reader:
        yield from reader


def _arrow(path: Path, columns: ColumnNames) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        if not source.size():
            raise refuse_empty(str(path))
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source) as reader:
            columns.check(str(path), reader.schema.names)
            batches: Any = (
                (reader.get_batch(number) for number in range(reader.num_record_batches))
                if is_file
                else reader
            )
            for batch in batches:
                yield batch.select(columns.all)


_READERS: dict[str, Callable[[Path, ColumnNames], Iterator[pa.RecordBatch]]] = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".csv": _csv,
    ".arrow": _arrow,
    ".arrows": _arrow,
    ".feather": _arrow,
    ".ipc": _arrow,
}
