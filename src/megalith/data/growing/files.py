"""`GrowingFiles`: the next file of a directory that grows, as the ledger has it or as it has just come."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path, PurePosixPath

from megalith.core.errors import CheckpointError, DataError
from megalith.data.growing.ledger import FileLedger
from megalith.data.growing.settings import GrowingConfig
from megalith.data.ingest.dataset import RawDataset
from megalith.data.ingest.index import FileIndex, RowIndex
from megalith.data.places import RawFile, has_file, list_files, place_text
from megalith.data.prepare.writer import GROUP_ROWS


class GrowingFiles:
    """Files by number; used by one thread."""

    def __init__(self, dataset: RawDataset, config: GrowingConfig, ledger: FileLedger) -> None:
        self._dataset, self._config, self._ledger = dataset, config, ledger
        self._come: deque[RawFile] = deque()
        self._looked = float("-inf")

    def next(self, number: int) -> RowIndex | None:
        """The rows of a file; None where it has not come yet. Looks at most once in `look_seconds`."""
        found = self._ledger.find(number)
        if found is None and number < self._ledger.next_number:
            raise CheckpointError(
                f"{self._ledger.path} no longer has the file that is number {number}; go on from a newer "
                "checkpoint."
            )
        if found is not None:
            # Taken by an earlier start, and read again.
            check_unchanged(found, self._dataset.path)
        else:
            if not self._come and time.monotonic() - self._looked >= self._config.look_seconds:
                self.look(number)
            if not self._come:
                return None
            found = self._dataset.reader.format.index(self._come[0], 0, GROUP_ROWS)
            self._ledger.add(found)
            self._come.popleft()
        return RowIndex([found], GROUP_ROWS)

    def name(self, number: int) -> str | None:
        """Of a file that was taken."""
        found = self._ledger.find(number)
        return None if found is None else found.name

    def look(self, number: int) -> bool:
        """Looks for files that are not in the ledger; whether there are some. `number` is the next one."""
        taken = self._ledger.names()
        try:
            listed = list_files(self._dataset.path)
        except DataError:
            # A pattern or a bucket's folder is there once something is in it.
            listed = []
        self._looked = time.monotonic()
        # As they are now: one that was there at the last look may have been put there again since.
        self._come = deque(file for file in listed if file.name not in taken and file.size)
        self._ledger.forget(number, {file.name for file in listed})
        return bool(self._come)

    def has_ended(self, number: int) -> bool:
        """Whether the marker is there, and no file that has not been taken."""
        if not is_marked(self._dataset.path, self._config):
            return False
        # What came before the marker is there when it is looked for after it.
        return self._ledger.find(number) is None and not self.look(number)


def is_marked(path: Path, config: GrowingConfig) -> bool:
    """Whether the folder has the file that says it grows no more."""
    text = place_text(path)
    folder = text if not _is_pattern(text) else text.rpartition("/")[0] or "."
    try:
        return has_file(folder, config.end)
    except DataError:
        return False


def check_unchanged(index: FileIndex, place: Path) -> None:
    """Refuses a file that was partly read and has another content now, or is gone."""
    listed = {file.name: file for file in list_files(place)}
    found = listed.get(index.name)
    if found is None:
        raise DataError(
            f"{index.name} was being read and is not there any more; put it back, or go on with another run."
        )
    if found != index.file:
        raise DataError(
            f"{index.name} has changed while the run reads it; add rows as files with names of their own."
        )


def _is_pattern(text: str) -> bool:
    return any(character in PurePosixPath(text).name for character in "*?[")
