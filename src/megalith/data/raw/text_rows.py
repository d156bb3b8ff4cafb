"""Rows of the text formats that `data prepare` knows: Criteo, Avazu, libFM. Labels may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pc_csv

from megalith.core.errors import ConfigError, DataError, nearest
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.data.raw.row_source import RawBlock, refuse_bad_rows, refuse_empty
from megalith.data.readers import (
    DelimitedFormat,
    DelimitedSource,
    EntryShape,
    EntrySource,
    TextChunk,
    open_text,
)
from megalith.data.readers.delimited import DelimitedChunk
from megalith.data.readers.streams import CHUNK_BYTES

_FIRST_LINE_BYTES = 65536


class _DelimitedItem(NamedTuple):
    source: DelimitedSource
    chunk: DelimitedChunk


class DelimitedText:
    """Rows of delimited text: with the label column, whose values nobody looks at, or without it."""

    def __init__(
        self,
        text_format: DelimitedFormat,
        recipe: PrepareRecipe,
        paths: Sequence[Path],
        keep: Sequence[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._format, self._recipe, self._paths = text_format, recipe, tuple(paths)
        self._keep, self._chunk_bytes = tuple(keep), chunk_bytes
        known = [column.name for column in text_format.columns]
        for name in keep:
            if name not in known:
                raise ConfigError(
                    f"--keep names '{name}', which is no column of {text_format.name}; {nearest(name, known)}"
                )

    def items(self) -> Iterator[_DelimitedItem]:
        """Chunks of whole lines."""
        recipe = self._recipe
        for path in self._paths:
            source = DelimitedSource(
                self._format_of(path), [path], recipe.numeric, recipe.missing_number, self._chunk_bytes
            )
            for chunk in source.items():
                yield _DelimitedItem(source, chunk)

    def parse(self, item: _DelimitedItem) -> RawBlock:
        """The rows of a chunk."""
        block = item.source.parse(item.chunk)
        refuse_bad_rows(block.bad_rows, "line")
        return RawBlock(block, self._kept(item) if self._keep else None)

    def _format_of(self, path: Path) -> DelimitedFormat:
        """The format of one file, which may lack the label and columns that are skipped."""
        columns = tuple(
            replace(column, kind="skip") if column.kind == "label" else column
            for column in self._format.columns
        )
        names = _first_line(path).removeprefix("\ufeff").rstrip("\r").split(self._format.delimiter)
        if self._format.header:
            columns = tuple(column for column in columns if column.kind != "skip" or column.name in names)
        elif len(names) == len(columns) - 1:
            label = next(each.name for each in self._format.columns if each.kind == "label")
            columns = tuple(column for column in columns if column.name != label)
        return replace(self._format, columns=columns)

    def _kept(self, item: _DelimitedItem) -> pa.RecordBatch:
        """The columns that go with scores, as text."""
        names = [column.name for column in item.chunk.columns]
        for name in self._keep:
            if name not in names:
                raise DataError(
                    f"{item.chunk.chunk.path} has no column '{name}', which --keep names; add it."
                )
        table = pc_csv.read_csv(
            pa.BufferReader(pa.py_buffer(item.chunk.chunk.text)),
            read_options=pc_csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=pc_csv.ParseOptions(delimiter=self._format.delimiter, quote_char=False),
            convert_options=pc_csv.ConvertOptions(
                column_types={name: pa.string() for name in names}, include_columns=list(self._keep)
            ),
        )
        return table.combine_chunks().to_batches()[0]


class EntryText:
    """Rows of libFM or libFFM text, whose lines begin with a label or with their first entry."""

    def __init__(
        self,
        shape: EntryShape,
        paths: Sequence[Path],
        keep: Sequence[str] = (),
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if keep:
            raise ConfigError(
                f"--keep names '{keep[0]}', and columns of libfm text have no names; leave it out."
            )
        self._paths, self._chunk_bytes = tuple(paths), chunk_bytes
        self._shape = shape

    def items(self) -> Iterator[TextChunk]:
        """Chunks of whole lines, each with a label."""
        for path in self._paths:
            first, *_ = (_first_line(path).split(), [""])
            unlabelled = bool(first) and ":" in first[0]
            for chunk in EntrySource([path], self._shape, self._chunk_bytes).items():
                yield _labelled(chunk) if unlabelled else chunk

    def parse(self, item: TextChunk) -> RawBlock:
        """The rows of a chunk."""
        block = EntrySource((), self._shape).parse(item)
        refuse_bad_rows(block.bad_rows, "line")
        return RawBlock(block, None)


def _labelled(chunk: TextChunk) -> TextChunk:
    """The lines with a label before each; those that are empty stay so."""
    lines = bytes(chunk.text).split(b"\n")
    text = b"\n".join(b"0 " + line if line.strip() else line for line in lines)
    return TextChunk(chunk.path, chunk.first_line, memoryview(text))


def _first_line(path: Path) -> str:
    buffer = bytearray(_FIRST_LINE_BYTES)
    with open_text(path) as stream:
        filled = _fill(stream, buffer)
    if not filled:
        raise refuse_empty(str(path))
    line, _, _ = bytes(buffer[:filled]).partition(b"\n")
    return line.decode("utf-8", "replace")


def _fill(stream: Any, buffer: bytearray) -> int:
    """Reads until a line end, the end of the buffer or of the file."""
    view, filled = memoryview(buffer), 0
    while filled < len(buffer) and b"\n" not in buffer[:filled]:
        count = stream.readinto(view[filled:])
        if not count:
            break
        filled += count
    return filled
