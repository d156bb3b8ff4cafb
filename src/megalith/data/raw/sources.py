"""Which source reads what: by the name of a file, and by how the data set of a schema was prepared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from megalith.core.errors import ConfigError, DataError
from megalith.data.prepare.recipe import TEXT_FORMATS
from megalith.data.raw.column_rows import ColumnRows
from megalith.data.raw.id_rows import PlainIdRows
from megalith.data.raw.record_files import ColumnNames, Records, file_records, is_record_file, table_records
from megalith.data.raw.row_source import RawBlock, RowSource
from megalith.data.raw.text_rows import DelimitedText, EntryText
from megalith.data.raw.transform import RowTransform

_ENDINGS = ".parquet, .csv, .arrow or .feather"


def frame_rows(transform: RowTransform, table: pa.Table) -> RowSource:
    """The rows of a table in memory."""
    return _table_rows(transform, partial(table_records, table), ())


def file_rows(transform: RowTransform, paths: Sequence[Path], keep: Sequence[str] = ()) -> RowSource:
    """The rows of files one after the other: of tables by their ending, of others as the run's own text."""
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder; name the files in it, or a prepared data set and --split.")
        if not path.exists():
            raise DataError(f"{path} does not exist; check the path.")
        if path.is_fifo():
            raise DataError(f"{path} is a pipe and would be read twice; save it to a file.")
    kinds = groupby(paths, key=lambda path: is_record_file(path) and not _is_own_text(transform, path))
    parts = [
        _files_of_tables(transform, list(group), keep) if are_tables else _text(transform, list(group), keep)
        for are_tables, group in kinds
    ]
    return parts[0] if len(parts) == 1 else _Chained(parts)


class _Chained:
    """Sources one after the other."""

    def __init__(self, parts: Sequence[RowSource]) -> None:
        self._parts = parts

    def items(self) -> Iterator[tuple[RowSource, Any]]:
        for part in self._parts:
            for item in part.items():
                yield part, item

    def parse(self, item: tuple[RowSource, Any]) -> RawBlock:
        part, own = item
        return part.parse(own)


def _is_own_text(transform: RowTransform, path: Path) -> bool:
    """Whether a CSV file is what the run was prepared from: text with a header and columns of its own."""
    recipe = transform.recipe
    text = None if recipe is None else TEXT_FORMATS.get(recipe.source)
    return text is not None and text.header and ".csv" in path.suffixes


def _files_of_tables(transform: RowTransform, paths: Sequence[Path], keep: Sequence[str]) -> RowSource:
    def read(columns: ColumnNames) -> Iterator[Records]:
        for path in paths:
            yield from file_records(path, columns)

    return _table_rows(transform, read, keep)


def _table_rows(transform: RowTransform, read: Any, keep: Sequence[str]) -> RowSource:
    if transform.recipe is None:
        return PlainIdRows(transform.schema, read, keep)
    return ColumnRows(transform.recipe, read, keep)


def _text(transform: RowTransform, paths: Sequence[Path], keep: Sequence[str]) -> RowSource:
    recipe = transform.recipe
    if recipe is not None and recipe.entries is not None:
        return EntryText(recipe.entries, paths, keep)
    if recipe is not None and recipe.source in TEXT_FORMATS:
        return DelimitedText(TEXT_FORMATS[recipe.source], recipe, paths, keep)
    raise ConfigError(f"{paths[0]} is no table by its name; files of this run end in {_ENDINGS}.")
