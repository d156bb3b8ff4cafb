"""Tables out to a file, some rows at a time: Parquet, CSV or Arrow by its ending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from megalith.core.errors import ConfigError

_ENDINGS = (".parquet", ".csv", ".arrow", ".feather")


def check_ending(path: Path) -> None:
    """Refuses a name that does not say what the file is to be."""
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(
            f"{path} must end in .parquet, .csv, .arrow or .feather, which says what it is to be."
        )


class TableWriter:
    """Writes tables of one schema; lists of one length become columns in CSV."""

    def __init__(self, writer: Any, schema: pa.Schema, flat: bool) -> None:
        self._writer, self.schema, self._flat = writer, schema, flat

    def write(self, table: pa.Table) -> None:
        """Adds the rows of a table."""
        if self._flat:
            table = _flat_table(table)
        self._writer.write_table(table)


@contextmanager
def open_table_writer(partial: Path, path: Path, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer to `partial` in the format that the name of `path` asks for."""
    ending = path.suffix.lower()
    writer: Any
    if ending == ".parquet":
        writer = pq.ParquetWriter(partial, schema, compression="zstd")
    elif ending == ".csv":
        writer = pc_csv.CSVWriter(partial, _flat_table(schema.empty_table()).schema)
    else:
        writer = pa.ipc.new_file(str(partial), schema)
    try:
        yield TableWriter(writer, schema, flat=ending == ".csv")
    finally:
        writer.close()


def _flat_table(table: pa.Table) -> pa.Table:
    """Lists of a fixed length as columns NAME0, NAME1, ...; dictionaries as their values."""
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            width = column.type.list_size
            flat = pa.chunked_array([part.flatten() for part in column.chunks], column.type.value_type)
            numbers = flat.to_numpy().reshape(-1, width)
            columns |= {f"{name}{place}": numbers[:, place] for place in range(width)}
        elif pa.types.is_dictionary(column.type):
            columns[name] = column.cast(column.type.value_type)
        else:
            columns[name] = column
    return pa.table(columns)
