"""Raw files of each kind: where their rows begin, and the rows between two places.

Text of one row a line (Criteo, Avazu, libFM) and CSV are read by byte; Parquet and Arrow files by row group
and record batch. Parsing is that of `data.readers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from megalith.core.errors import DataError
from megalith.data.ingest.index import FileIndex, RowMark, Section
from megalith.data.places import RawFile, open_file
from megalith.data.prepare.recipe import PrepareRecipe
from megalith.data.raw.row_source import refuse_bad_rows, refuse_empty
from megalith.data.readers import DelimitedSource, EntrySource, FrameSource, LogBlock, TextChunk
from megalith.data.readers.frames.csv_file import CsvFormat
from megalith.data.readers.frames.files import BATCH_ROWS, FrameBatch
from megalith.data.readers.streams import cut_at_lines

_CHUNK_BYTES = 4 << 20
_LINE_FEED, _RETURN = 10, 13


class BlockRows(NamedTuple):
    """Rows [start, stop) of a block."""

    block: LogBlock
    start: int
    stop: int


class RawFormat(ABC):
    """Files of one kind. Threads may share it."""

    @abstractmethod
    def index(self, file: RawFile, first_row: int, group_rows: int) -> FileIndex:
        """How many rows a file has, and where those begin that start a row group; `first_row` is the number
        of its first one among all files."""

    @abstractmethod
    def read(self, section: Section) -> Iterator[BlockRows]:
        """The rows of a section, some at a time."""


def raw_format(recipe: PrepareRecipe) -> RawFormat:
    """The reader of files of the kind that a preparation was for."""
    source = recipe.open((), _CHUNK_BYTES)
    if isinstance(source, FrameSource):
        return _CsvText(source) if isinstance(source.format, CsvFormat) else _Batches(source, recipe.source)
    assert isinstance(source, DelimitedSource | EntrySource)
    return _Lines(source)


class _Text(RawFormat):
    def read(self, section: Section) -> Iterator[BlockRows]:
        with open_file(section.file) as stream:
            stream.seek(section.begin.place)
            text = memoryview(stream.read_buffer(section.end - section.begin.place))
        chunk = TextChunk(Path(section.file), section.begin.line, text)
        block = self._parse(chunk, section.header)
        refuse_bad_rows(block.bad_rows, "line")
        if block.num_rows != section.parsed:
            raise DataError(
                f"{section.file}, from line {section.begin.line} on, has {block.num_rows:,} rows where "
                f"{section.parsed:,} were counted; leave out lines of blanks alone, and change no file that "
                "a run reads."
            )
        yield BlockRows(block, section.start - section.begin.row, section.stop - section.begin.row)

    @abstractmethod
    def _parse(self, chunk: TextChunk, header: str) -> LogBlock:
        """The rows of a piece of text."""


class _Lines(_Text):
    """One row a line; empty lines are none."""

    def __init__(self, source: DelimitedSource | EntrySource) -> None:
        self._source = source
        self._has_header = isinstance(source, DelimitedSource) and source.text_format.header

    def index(self, file: RawFile, first_row: int, group_rows: int) -> FileIndex:
        marks = _Marks(first_row, group_rows)
        header, place = "", 0
        with open_file(file.name) as stream:
            for chunk in cut_at_lines(stream, Path(file.name), _CHUNK_BYTES):
                text, line = chunk.text, chunk.first_line
                if line == 1 and self._has_header:
                    first, _, _ = bytes(text[:65536]).partition(b"\n")
                    header = first.decode("utf-8", "replace")
                    text, line, place = text[len(first) + 1 :], 2, len(first) + 1
                    # Refuses a header that does not fit.
                    self._parse(TextChunk(chunk.path, line, text[:0]), header)
                starts, lines = _line_starts(text)
                marks.add(starts, lines, place, line)
                place += len(text)
        return marks.index(file, header)

    def _parse(self, chunk: TextChunk, header: str) -> LogBlock:
        source = self._source
        if isinstance(source, DelimitedSource):
            return source.parse(source.chunk_of(chunk, header))
        return source.parse(chunk)


class _CsvText(_Text):
    """CSV with a header; a row may be of several lines."""

    def __init__(self, source: FrameSource) -> None:
        assert isinstance(source.format, CsvFormat)
        self._source, self._format = source, source.format

    def index(self, file: RawFile, first_row: int, group_rows: int) -> FileIndex:
        marks = _Marks(first_row, group_rows)
        header: list[str] = []
        place = 0
        with open_file(file.name) as stream:
            for whole in self._format.whole_rows(stream, Path(file.name)):
                chunk = whole
                if not header:
                    chunk, header = self._format.take_header(whole)
                    place = len(whole.text) - len(chunk.text)
                    self._format.item(chunk, header, self._source.column_names)
                rows = self._format.row_lines(chunk, len(header))
                starts = np.concatenate(([0], np.flatnonzero(_bytes(chunk.text) == _LINE_FEED) + 1))
                marks.add(starts[rows], rows, place, chunk.first_line)
                place += len(chunk.text)
        return marks.index(file, "\n".join(header))

    def _parse(self, chunk: TextChunk, header: str) -> LogBlock:
        names = self._source.column_names
        return self._source.parse(self._format.item(chunk, header.split("\n"), names))


class _Batches(RawFormat):
    """Parquet and Arrow files. Only the columns that are read are decoded."""

    def __init__(self, source: FrameSource, kind: str) -> None:
        self._source = source
        self._opened = _parquet if kind == "parquet" else _arrow

    def index(self, file: RawFile, first_row: int, group_rows: int) -> FileIndex:
        with open_file(file.name) as stream, self._opened(stream, file.name) as opened:
            names = opened.names
            missing = next((name for name in self._source.column_names if name not in names), None)
            if missing is not None:
                raise DataError(
                    f"{file.name} has no column '{missing}', which other files have; leave it out."
                )
            ends = np.cumsum([0, *opened.batch_rows()]).tolist()
        if not ends[-1]:
            raise refuse_empty(file.name)
        marks = tuple(RowMark(row, number, 0) for number, row in enumerate(ends[:-1]))
        return FileIndex(
            name=file.name,
            size=file.size,
            changed=file.changed,
            first_row=first_row,
            rows=ends[-1],
            marks=marks,
        )

    def read(self, section: Section) -> Iterator[BlockRows]:
        row = section.begin.row
        with open_file(section.file) as stream, self._opened(stream, section.file) as opened:
            for batch in opened.batches(section.begin.place, self._source.column_names):
                if row >= section.stop:
                    return
                low, high = max(section.start - row, 0), min(section.stop - row, batch.num_rows)
                if low < high:
                    piece = FrameBatch(Path(section.file), row + low + 1, batch.slice(low, high - low))
                    block = self._source.parse(piece)
                    refuse_bad_rows(block.bad_rows, "row")
                    yield BlockRows(block, 0, high - low)
                row += batch.num_rows
        if row < section.stop:
            raise DataError(f"{section.file} has fewer rows than it had; change no file that a run reads.")


class _ParquetFile:
    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
        self.names: Sequence[str] = file.schema_arrow.names

    def batch_rows(self) -> list[int]:
        metadata = self._file.metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]

    def batches(self, first: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number in range(first, self._file.metadata.num_row_groups):
            yield from self._file.iter_batches(
                BATCH_ROWS, row_groups=[number], columns=list(names), use_threads=False
            )


class _ArrowFile:
    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._is_file = stream.read(6) == b"ARROW1"
        self.names: Sequence[str] = self._reader(None).schema.names

    def batch_rows(self) -> list[int]:
        return [batch.num_rows for batch in self._batches(self._reader([0]), 0)]

    def batches(self, first: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        places = [self.names.index(name) for name in names]
        for batch in self._batches(self._reader(sorted(places)), first):
            ordered = batch.select(list(names))
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield ordered.slice(start, BATCH_ROWS)

    def _reader(self, fields: list[int] | None) -> Any:
        self._stream.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return (pa.ipc.open_file if self._is_file else pa.ipc.open_stream)(self._stream, options=options)

    def _batches(self, reader: Any, first: int) -> Iterator[pa.RecordBatch]:
        if self._is_file:
            for number in range(first, reader.num_record_batches):
                yield reader.get_batch(number)
            return
        for number, batch in enumerate(reader):
            if number >= first:
                yield batch


@contextmanager
def _parquet(stream: pa.NativeFile, name: str) -> Iterator[_ParquetFile]:
    with _whole(name, "Parquet"), pq.ParquetFile(stream) as file:
        yield _ParquetFile(file)


@contextmanager
def _arrow(stream: pa.NativeFile, name: str) -> Iterator[_ArrowFile]:
    with _whole(name, "Arrow"):
        yield _ArrowFile(stream)


@contextmanager
def _whole(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{name} is not a whole {kind} file ({reason}); get it again.") from error


class _Marks:
    """Collects the rows of a file at which row groups of all files begin, and its first."""

    def __init__(self, first_row: int, group_rows: int) -> None:
        self._first_row, self._group_rows = first_row, group_rows
        self._next = 0
        self._rows = 0
        self._marks: list[RowMark] = []

    def add(self, starts: NDArray[np.int64], lines: NDArray[np.int64], place: int, line: int) -> None:
        """The rows of a chunk: the byte and the line of each, from those of the chunk."""
        while self._next < self._rows + len(starts):
            at = self._next - self._rows
            self._marks.append(RowMark(self._next, place + int(starts[at]), line + int(lines[at])))
            reached = self._first_row + self._next
            self._next += self._group_rows - reached % self._group_rows
        self._rows += len(starts)

    def index(self, file: RawFile, header: str) -> FileIndex:
        """All of it."""
        if not self._rows:
            raise refuse_empty(file.name)
        return FileIndex(
            name=file.name,
            size=file.size,
            changed=file.changed,
            first_row=self._first_row,
            rows=self._rows,
            marks=tuple(self._marks),
            header=header,
        )


def _bytes(text: memoryview) -> NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8)


def _line_starts(text: memoryview) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every line that is not empty, the byte where it begins and its number, from 0."""
    data = _bytes(text)
    ends = np.flatnonzero(data == _LINE_FEED)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - starts
    lines = np.arange(len(starts))
    if len(lengths) and lengths.min() <= 1:
        short = lengths <= 1
        empty = short & ((lengths == 0) | (data[np.minimum(starts, len(data) - 1)] == _RETURN))
        starts, lines = starts[~empty], lines[~empty]
    return starts, lines
