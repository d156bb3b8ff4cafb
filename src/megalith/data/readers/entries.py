"""libFM (`label index:value ...`) and libFFM (`label field:index:value ...`) text.

What the entries of a row mean is a property of the whole data: where every row has the same number of them,
the position in the row is the field (one-hot data such as Frappe: features f0, f1, ...); where rows differ
they are one multi-hot feature `features`; libFFM names the field itself. `scan_shape` reads the files once to
decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from megalith.core.config import Config
from megalith.core.errors import DataError
from megalith.data.readers.block import BadRow, Bag, Feature, LogBlock, shown
from megalith.data.readers.key_texts import line_texts
from megalith.data.readers.streams import CHUNK_BYTES, TextChunk, read_chunks
from megalith.ops.text.keys import Keys
from megalith.ops.text.rows import EntryRows, ParseProblem, parse_entries

_SEPARATORS = b": \t"
FieldsChoice = Literal["auto", "positional", "bag", "named"]


class EntryShape(Config):
    """How entries become features."""

    kind: Literal["positional", "bag", "named"]
    num_positions: int = 0
    """positional: entries of every row."""
    fields: tuple[int, ...] = ()
    """named: the field numbers that occur, ascending."""
    multi_hot: tuple[int, ...] = ()
    """named: the fields that hold several entries in some row."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns that the entries become."""
        if self.kind == "positional":
            return tuple(Feature(f"f{position}") for position in range(self.num_positions))
        if self.kind == "bag":
            return (Feature("features", multi_hot=True),)
        return tuple(Feature(f"f{field}", multi_hot=field in self.multi_hot) for field in self.fields)


class EntrySource:
    """The rows of libFM or libFFM files, in the order of the files."""

    def __init__(self, paths: Sequence[Path], shape: EntryShape, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.paths = tuple(paths)
        self.shape = shape
        self._chunk_bytes = chunk_bytes

    @property
    def numeric(self) -> tuple[str, ...]:
        """No names: these formats have no numeric columns."""
        return ()

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns."""
        return self.shape.features

    def items(self) -> Iterator[TextChunk]:
        """Chunks of whole lines."""
        return _chunks(self.paths, self._chunk_bytes)

    def parse(self, item: TextChunk) -> LogBlock:
        """The rows of one chunk."""
        shape = self.shape
        positions = shape.num_positions if shape.kind == "positional" else None
        rows = parse_entries(item.text, shape.kind == "named", positions)
        bad = tuple(_bad_row(item, problem, shape) for problem in rows.problems.tolist())
        texts_of = line_texts(item.text, _SEPARATORS)
        return LogBlock(rows.labels, (), self._columns(item, rows), bad, texts_of=texts_of)

    def _columns(self, chunk: TextChunk, rows: EntryRows) -> tuple[Keys | Bag, ...]:
        if self.shape.kind == "positional":
            return tuple(np.ascontiguousarray(rows.keys.reshape(-1, self.shape.num_positions).T))
        if self.shape.kind == "bag":
            return (Bag(rows.keys, rows.row_ends),)
        num_rows = len(rows.labels)
        row_of = np.repeat(np.arange(num_rows), np.diff(rows.row_ends, prepend=0))
        columns: list[Keys | Bag] = []
        for field in self.shape.fields:
            chosen = rows.fields == field
            owners, keys = row_of[chosen], rows.keys[chosen]
            lengths = np.bincount(owners, minlength=num_rows)
            if field in self.shape.multi_hot:
                columns.append(Bag(keys, np.cumsum(lengths)))
                continue
            if len(keys) and lengths.max() > 1:
                raise DataError(
                    f"{chunk.path}: field {field} holds several entries in a row, but one where the "
                    "vocabulary came from; prepare both from the same kind of data."
                )
            column = np.zeros(num_rows, np.uint64)
            column[owners] = keys
            columns.append(column)
        return tuple(columns)


def scan_shape(
    paths: Sequence[Path], choice: FieldsChoice = "auto", chunk_bytes: int = CHUNK_BYTES
) -> EntryShape:
    """Reads the files and says how their entries become features; `choice` forces the kind."""
    named = _is_named(paths[0]) if choice == "auto" else choice == "named"
    if choice == "bag":
        return EntryShape(kind="bag")
    lengths: set[int] = set()
    fields: set[int] = set()
    multi_hot: set[int] = set()
    for chunk in _chunks(paths, chunk_bytes):
        rows = parse_entries(chunk.text, with_fields=named)
        row_lengths = np.diff(rows.row_ends, prepend=0)
        lengths.update(np.unique(row_lengths).tolist())
        if named:
            fields.update(np.unique(rows.fields).tolist())
            owners = np.repeat(np.arange(len(row_lengths), dtype=np.int64), row_lengths) << 32 | rows.fields
            pairs, counts = np.unique(owners, return_counts=True)
            multi_hot.update(np.unique(pairs[counts > 1] & 0xFFFFFFFF).tolist())
        elif choice == "positional" and row_lengths.any():
            # Forced: the first row with entries says how many, and rows that differ are bad rows.
            return EntryShape(kind="positional", num_positions=int(row_lengths[row_lengths > 0][0]))
        elif choice == "auto" and len(lengths) > 1:
            return EntryShape(kind="bag")
    if named:
        return EntryShape(kind="named", fields=tuple(sorted(fields)), multi_hot=tuple(sorted(multi_hot)))
    if lengths in (set(), {0}):
        return EntryShape(kind="bag")
    return EntryShape(kind="positional", num_positions=lengths.pop())


def _chunks(paths: Sequence[Path], chunk_bytes: int) -> Iterator[TextChunk]:
    for path in paths:
        num_chunks = 0
        for chunk in read_chunks(path, chunk_bytes):
            num_chunks += 1
            yield chunk
        if num_chunks == 0:
            raise DataError(f"{path} is empty; leave it out or get it again.")


def _is_named(path: Path) -> bool:
    """Whether the first entry of the file has two colons."""
    for chunk in read_chunks(path):
        for line in bytes(chunk.text).splitlines():
            tokens = line.split()
            if len(tokens) > 1:
                return tokens[1].count(b":") == 2
    return False


def _bad_row(chunk: TextChunk, problem: list[int], shape: EntryShape) -> BadRow:
    line, before, kind, field, offset, length = problem
    token = shown(bytes(chunk.text[offset : offset + length]))
    if kind == ParseProblem.FIELD_COUNT:
        said = f"has {field - 1} entries instead of {shape.num_positions}"
    elif kind == ParseProblem.NOT_A_LABEL:
        said = f"begins with {token}, which is not a label (-1, 0 or 1)"
    elif kind == ParseProblem.NOT_ONE:
        said = f"has {token} as entry {field - 1}, whose value is not 1 (weighted entries are not supported)"
    else:
        form = "field:index:value" if shape.kind == "named" else "index:value"
        said = f"has {token} as entry {field - 1}, which is not {form}"
    return BadRow(str(chunk.path), chunk.first_line + line, said, before)
