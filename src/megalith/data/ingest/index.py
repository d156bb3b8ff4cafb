"""Where rows begin in raw files, so that any 65,536 of them can be read without those before.

The index of Parquet and Arrow files is what they say of themselves. Text is read once to count its rows, at
the rate of the disk, and a run keeps the result. Rows of all files are numbered through, and cut into row
groups where `data prepare` would cut them, so that the order of rows is that of a prepared data set.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from megalith.core.config import Config, parse_config
from megalith.core.errors import DataError, MegalithError
from megalith.core.files import read_json_object, write_atomic
from megalith.data.loader.plan import RowGroup
from megalith.data.places import RawFile


class RowMark(NamedTuple):
    """A place where reading can begin."""

    row: int
    """Of the file, from 0."""
    place: int
    """The byte of text; the row group or record batch of other files."""
    line: int
    """Of text, from 1."""


class FileIndex(Config):
    """The rows of a file."""

    name: str
    size: int
    changed: int
    first_row: int
    """Rows of the files before it."""
    rows: int
    marks: tuple[RowMark, ...]
    header: str = ""
    """The first line, of text that has names of columns there."""

    @property
    def file(self) -> RawFile:
        """The file that was looked at."""
        return RawFile(self.name, self.size, self.changed)


class Section(NamedTuple):
    """Consecutive rows of a file, and all that reading them takes."""

    file: str
    begin: RowMark
    """Where reading begins."""
    end: int
    """Of text: the byte where it ends."""
    parsed: int
    """Rows of text between these."""
    start: int
    """Rows of the file before the first that is wanted."""
    stop: int
    header: str

    def to_list(self) -> list[object]:
        """As JSON holds it."""
        return [self.file, list(self.begin), *self[2:]]

    @classmethod
    def from_list(cls, content: list[object]) -> Section:
        """What `to_list` gave."""
        file, begin, *rest = content
        return cls(file, RowMark(*begin), *rest)  # type: ignore[misc, arg-type]


def section(index: FileIndex, start: int, stop: int) -> Section:
    """Rows [start, stop) of a file."""
    rows = [mark.row for mark in index.marks]
    first, last = bisect_right(rows, start) - 1, bisect_left(rows, stop)
    begin = index.marks[first]
    after = index.marks[last] if last < len(rows) else RowMark(index.rows, index.size, 0)
    return Section(index.name, begin, after.place, after.row - begin.row, start, stop, index.header)


class RowIndex:
    """The rows of several files, one after the other."""

    def __init__(self, files: Sequence[FileIndex], group_rows: int) -> None:
        self.files = tuple(files)
        self.group_rows = group_rows
        self.rows = sum(file.rows for file in files)

    def groups(self) -> list[RowGroup]:
        """Row groups as those of a prepared data set; they count as one file."""
        size = self.group_rows
        return [
            RowGroup(0, number, first, min(size, self.rows - first))
            for number, first in enumerate(range(0, self.rows, size))
        ]

    def sections(self, start: int, stop: int) -> list[Section]:
        """Rows [start, stop) of all, file after file."""
        firsts = [file.first_row for file in self.files]
        found = []
        for file in self.files[max(bisect_right(firsts, start) - 1, 0) :]:
            low, high = max(start - file.first_row, 0), min(stop - file.first_row, file.rows)
            if low >= high:
                break
            found.append(section(file, low, high))
        return found

    def digest(self) -> int:
        """What changes where other files are read: of their names and rows."""
        return zlib.crc32(json.dumps([[Path(file.name).name, file.rows] for file in self.files]).encode())


class _Stored(Config):
    files: tuple[FileIndex, ...]


class IndexFile:
    """Indexes of files that a run has looked at, so that a resumed one need not look again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[tuple[str, int], FileIndex] = {}
        if path is not None and path.exists():
            fix = "remove it"
            try:
                stored = parse_config(_Stored, read_json_object(path, fix=fix), str(path), fix, DataError)
            except MegalithError:
                # It only saves time; what is damaged is made again.
                return
            self._known = {(file.name, file.first_row): file for file in stored.files}

    def find(self, file: RawFile, first_row: int) -> FileIndex | None:
        """What is known of a file that has not changed since."""
        known = self._known.get((file.name, first_row))
        return known if known is not None and known.file == file else None

    def add(self, index: FileIndex) -> None:
        """Takes what was found."""
        self._known[index.name, index.first_row] = index

    def write(self, path: Path) -> None:
        """Keeps all that is known."""
        write_atomic(path, _Stored(files=tuple(self._known.values())).model_dump_json() + "\n")
