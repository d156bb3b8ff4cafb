"""CSV files: a header line, quotes where they are needed, .gz and .zst; every column is text.

Text is cut into chunks of whole rows by one thread and parsed natively in any; memory holds a few chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megalith.core.errors import ConfigError, DataError
from megalith.data.readers.block import BadRow
from megalith.data.readers.frames.files import SAMPLE_BYTES, SAMPLE_ROWS, FrameRows
from megalith.data.readers.frames.values import MISSING_WORDS, all_numbers, cast_texts
from megalith.data.readers.streams import CHUNK_BYTES, MAX_LINE_BYTES, TextChunk, fill_buffer, open_text
from megalith.ops.text.csv import CsvRows, csv_whole_rows, parse_csv
from megalith.ops.text.rows import ParseProblem

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CODE = "^0[0-9]"
"""Zeros in front are those of a code."""


class _CsvItem(NamedTuple):
    chunk: TextChunk
    names: tuple[str, ...]
    """The chosen columns."""
    outputs: tuple[int, ...]
    """For each field of a row its place among the chosen columns, or -1."""


class CsvFormat:
    """CSV files with a header."""

    is_untyped = True

    def __init__(self, delimiter: str = ",", chunk_bytes: int = CHUNK_BYTES) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n' or ord(delimiter) > 127:
            raise ConfigError(f"--delimiter must be one character such as ',' or ';', not {delimiter!r}.")
        self._delimiter, self._chunk_bytes = delimiter, chunk_bytes

    def sample(self, path: Path) -> pa.Table:
        """The first rows, each column with the narrowest type that all its values have."""
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        for item in self.items(path, None):
            batch = self.rows(item).batch
            batch = batch.slice(0, SAMPLE_ROWS - rows)
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + len(item.chunk.text)
            if rows >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                break
        table = pa.Table.from_batches(batches)
        return pa.table([typed(column) for column in table.columns], table.column_names)

    def items(self, path: Path, names: Sequence[str] | None) -> Iterator[_CsvItem]:
        """Chunks of whole rows, with the columns as the file's header orders them; None takes all."""
        header: list[str] | None = None
        with open_text(path) as stream:
            for chunk in self.whole_rows(stream, path):
                if header is None:
                    chunk, header = self.take_header(chunk)
                    names = header if names is None else names
                yield self.item(chunk, header, names or ())
        if header is None:
            raise DataError(f"{path} is empty; leave it out or get it again.")

    def item(self, chunk: TextChunk, header: Sequence[str], names: Sequence[str]) -> _CsvItem:
        """Whole rows of a file whose header is known, these columns of them."""
        missing = next((name for name in names if name not in header), None)
        if missing is not None:
            raise DataError(f"{chunk.path} has no column '{missing}', which other files have; leave it out.")
        places = {name: place for place, name in enumerate(names)}
        return _CsvItem(chunk, tuple(names), tuple(places.get(name, -1) for name in header))

    def row_lines(self, chunk: TextChunk, num_fields: int) -> NDArray[np.int64]:
        """The line of the chunk, from 0, where each row begins; one with other fields is refused."""
        item = _CsvItem(chunk, (), (-1,) * num_fields)
        parsed = parse_csv(chunk.text, self._delimiter, item.outputs)
        if len(parsed.problems):
            line, _, kind, fields, *_ = parsed.problems[0].tolist()
            problem = _problem(kind, fields, item)
            raise DataError(f"{chunk.path}, line {chunk.first_line + line} {problem}; correct it.")
        return parsed.row_lines

    def rows(self, item: _CsvItem) -> FrameRows:
        """The rows of a chunk as columns of bytes."""
        chunk = item.chunk
        parsed = parse_csv(chunk.text, self._delimiter, item.outputs)
        bad = tuple(
            BadRow(str(chunk.path), chunk.first_line + line, _problem(kind, fields, item), before)
            for line, before, kind, fields, *_ in parsed.problems.tolist()
        )
        batch = pa.record_batch(_columns(parsed), list(item.names))
        return FrameRows(chunk.path, batch, chunk.first_line + parsed.row_lines, bad)

    def take_header(self, chunk: TextChunk) -> tuple[TextChunk, list[str]]:
        """The names of the columns, and the rows that follow in the chunk."""
        text = chunk.text
        if bytes(text[:3]) == _BYTE_ORDER_MARK:
            text = text[3:]
        size = lines = end = 0
        while not size and end < len(text):
            # The shortest beginning that is a row: names may hold line feeds too.
            end = _line_end(text, end)
            size, lines = csv_whole_rows(text[:end], self._delimiter)
        row = text[: size or len(text)]
        # A row of which no field is expected is a problem that says how many there are.
        counted = parse_csv(row, self._delimiter, ()).problems
        fields = _columns(parse_csv(row, self._delimiter, range(int(counted[0][3]) if len(counted) else 0)))
        names = [field[0].as_py().decode("utf-8", "replace").strip() for field in fields if len(field)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{chunk.path}, line 1 names column '{twice}' twice; rename one.")
        if len(names) < 2:
            raise ConfigError(
                f"{chunk.path}, line 1 has one column for the delimiter '{self._delimiter}'; it must name "
                "the columns, or pass --delimiter."
            )
        return TextChunk(chunk.path, 1 + (lines or 1), text[len(row) :]), names

    def whole_rows(self, stream: Any, path: Path) -> Iterator[TextChunk]:
        """Whole rows of an open file, about `chunk_bytes` at a time; the last may lack its line feed."""
        carry, first_line, size = b"", 1, self._chunk_bytes
        while True:
            buffer = bytearray(len(carry) + size)
            buffer[: len(carry)] = carry
            filled = fill_buffer(stream, buffer, len(carry))
            at_end = filled < len(buffer)
            view = memoryview(buffer)[:filled]
            cut, lines = csv_whole_rows(view, self._delimiter)
            if at_end:
                if filled:
                    yield TextChunk(path, first_line, view)
                return
            if cut:
                yield TextChunk(path, first_line, view[:cut])
                first_line += lines
            elif filled > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}: the row that begins in line {first_line} is longer than "
                    f"{MAX_LINE_BYTES >> 20} MiB; is a quote never closed?"
                )
            # A row that does not fit is read in steps that grow, so that it is not scanned for ever.
            carry, size = bytes(view[cut:]), self._chunk_bytes if cut else filled


def typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of texts with the narrowest type of integers, floats and timestamps that all values have.

    Codes such as 007 stay text. Empty fields are missing values.
    """
    texts = pa.chunked_array([_texts(chunk) for chunk in column.chunks], pa.large_string())
    given = texts.drop_null()
    if not len(given):
        return pa.chunked_array([pa.nulls(len(texts))])
    numbers = _numbers(texts)
    if numbers is not None and not pc.any(pc.match_substring_regex(given, _CODE)).as_py():
        return numbers
    if pc.match_substring_regex(given[0], r"^\d{4}-\d\d-\d\d").as_py():
        times, no_times = cast_texts(texts.combine_chunks(), pa.timestamp("us"))
        if not no_times.any():
            return pa.chunked_array([times])
    return texts


def _numbers(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Texts as integers, or as numbers with words for missing ones; None where some are neither."""
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        trimmed = pc.replace_substring_regex(pc.ascii_trim_whitespace(texts), "^[+]", "")
    words = pa.array(MISSING_WORDS, pa.large_string())
    numbers = all_numbers(pc.if_else(pc.is_in(trimmed, value_set=words), None, trimmed))
    return None if numbers is None or numbers.null_count == len(numbers) else numbers


def _texts(column: pa.Array) -> pa.Array:
    """Bytes as text, an empty field as a missing value; what is not UTF-8 is shown with marks."""
    try:
        texts = column.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = pa.array(
            [value.decode("utf-8", "replace") for value in column.to_pylist()], pa.large_string()
        )
    return pc.if_else(pc.equal(texts, ""), None, texts)


def _columns(rows: CsvRows) -> list[pa.Array]:
    data = pa.py_buffer(rows.data)
    num_rows = len(rows.row_lines)
    return [
        pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), num_rows, [None, pa.py_buffer(np.ascontiguousarray(bounds)), data]
        )
        for bounds in rows.offsets
    ]


def _line_end(text: memoryview, start: int) -> int:
    """Behind the next line feed, or the end of the text."""
    found = bytes(text[start : start + 65536]).find(b"\n")
    while found < 0 and start + 65536 < len(text):
        start += 65536
        found = bytes(text[start : start + 65536]).find(b"\n")
    return len(text) if found < 0 else start + found + 1


def _problem(kind: int, fields: int, item: _CsvItem) -> str:
    if kind == ParseProblem.OPEN_QUOTE:
        return "opens a quote that is never closed"
    return f"has {fields} fields instead of {len(item.outputs)}"
