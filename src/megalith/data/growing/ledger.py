"""`FileLedger`: the files that a run has taken, in their order, one a line.

A file is in the ledger before the first of its rows is used. Whoever goes on from a checkpoint takes those
after its position in the same order again, whatever has come meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from megalith.core.config import Config, parse_config
from megalith.core.errors import CheckpointError
from megalith.core.files import append, read_jsonl, write_atomic
from megalith.data.ingest.index import FileIndex

_FORGET_AT = 2000


class TakenFile(Config):
    """A line."""

    number: int
    """In the order in which files were taken, from 0."""
    index: FileIndex
    """Its name, size and time, and where its rows begin."""


class FileLedger:
    """Of one run; without a path it lasts as long as this does."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._taken: dict[int, TakenFile] = {}
        self._read = False

    @property
    def next_number(self) -> int:
        """Of the file that is added next."""
        self._open()
        return max(self._taken, default=-1) + 1

    def find(self, number: int) -> FileIndex | None:
        """The file that was taken so; None where none was yet."""
        self._open()
        found = self._taken.get(number)
        return None if found is None else found.index

    def names(self) -> set[str]:
        """Of all files that were taken and may be there still."""
        self._open()
        return {taken.index.name for taken in self._taken.values()}

    def add(self, index: FileIndex) -> int:
        """Takes a file; its number."""
        taken = TakenFile(number=self.next_number, index=index)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append(self.path, taken.model_dump_json().encode() + b"\n")
        self._taken[taken.number] = taken
        return taken.number

    def forget(self, before: int, present: Collection[str]) -> None:
        """Drops files before a number that are not there any more, once there are many."""
        gone = [
            number
            for number, taken in self._taken.items()
            if number < before and taken.index.name not in present
        ]
        if len(gone) < _FORGET_AT:
            return
        for number in gone:
            del self._taken[number]
        self._write()

    def _write(self) -> None:
        if self.path is not None:
            lines = [taken.model_dump_json() for taken in self._taken.values()]
            write_atomic(self.path, "".join(f"{line}\n" for line in lines))

    def _open(self) -> None:
        if self._read:
            return
        self._read = True
        if self.path is None or not self.path.exists():
            return
        fix = "go on with another run"
        for entry in read_jsonl(self.path):
            taken = parse_config(TakenFile, entry, str(self.path), fix, CheckpointError)
            self._taken[taken.number] = taken
        # A line that a kill cut short must not stay in front of the next one.
        self._write()
