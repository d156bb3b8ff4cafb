"""`GrowingRows`: rows of the files that a run has begun to read, each file with row groups of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from megalith.data.ingest.index import RowIndex, Section
from megalith.data.ingest.raw_rows import SectionReader
from megalith.data.loader.columns import WindowColumns
from megalith.data.loader.plan import RowGroup, ShuffleWindow


class GrowingRows:
    """A file is an epoch of its own: `window.epoch` is its number."""

    def __init__(self, reader: SectionReader) -> None:
        self.reader = reader
        self.schema = reader.transform.schema
        self.groups: list[RowGroup] = []
        """Those of a file are found by `begin`."""
        self.rows = 0
        self.origin: dict[str, Any] = {}
        self._files: dict[int, RowIndex] = {}

    def begin(self, number: int, index: RowIndex) -> list[RowGroup]:
        """Takes a file up; its row groups."""
        self._files[number] = index
        return index.groups()

    def forget(self, before: int) -> None:
        """Files before a number have been read."""
        for number in [number for number in self._files if number < before]:
            del self._files[number]

    def locate(self, window: ShuffleWindow) -> list[Section]:
        """Where the rows of a window are."""
        index = self._files[window.epoch]
        return [
            section
            for part in window.parts
            for section in index.sections(part.group.first_row + part.start, part.group.first_row + part.stop)
        ]

    def read_at(self, place: list[Section], order: npt.NDArray[np.int64] | None) -> WindowColumns:
        """The rows of sections in `order`; None takes all in file order."""
        return self.reader.read(place, order)
