"""Rows of raw files as a loader reads them: parsed, transformed and put into the order of the window."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megalith.data.dataset import SCHEMA_FILE
from megalith.data.ingest.formats import RawFormat, raw_format
from megalith.data.ingest.index import RowIndex, Section
from megalith.data.loader.columns import WindowColumns, join_columns, rows_of
from megalith.data.loader.plan import ShuffleWindow
from megalith.data.prepare.vocabulary import FOLDER as VOCABULARY
from megalith.data.raw.transform import RowTransform


class SectionReader:
    """Sections of raw files to columns; threads may share it."""

    def __init__(self, transform: RowTransform, raw_format: RawFormat) -> None:
        self.transform, self.format = transform, raw_format

    def __reduce__(self) -> tuple[Any, ...]:
        # For readers on machines that do not have the folder.
        folder = self.transform.folder
        files = [folder / SCHEMA_FILE, *sorted((folder / VOCABULARY).glob("*"))]
        return _open_elsewhere, ({str(path.relative_to(folder)): path.read_bytes() for path in files},)

    def read(self, sections: Sequence[Section], order: npt.NDArray[np.int64] | None) -> WindowColumns:
        """All rows of the sections in `order`, which may leave some out."""
        parts = [
            rows_of(self.transform.columns(rows.block), rows.start, rows.stop)
            for section in sections
            for rows in self.format.read(section)
        ]
        return join_columns(parts, order)


def _open_elsewhere(files: dict[str, bytes]) -> SectionReader:
    with tempfile.TemporaryDirectory(prefix="megalith-transform-") as name:
        for relative, content in files.items():
            path = Path(name) / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        transform = RowTransform(Path(name))
    assert transform.recipe is not None
    return SectionReader(transform, raw_format(transform.recipe))


class RawRows:
    """The rows of some raw files, in the row groups that `data prepare` would make of them."""

    def __init__(self, reader: SectionReader, index: RowIndex) -> None:
        self.reader, self.index = reader, index
        self.schema = reader.transform.schema
        self.groups = index.groups()
        self.rows = index.rows
        self.origin: dict[str, Any] = {"files": index.digest()}

    def read_at(self, place: list[Section], order: npt.NDArray[np.int64] | None) -> WindowColumns:
        """The rows of sections in `order`; None takes all in file order."""
        return self.reader.read(place, order)

    def locate(self, window: ShuffleWindow) -> list[Section]:
        """Where the rows of a window are."""
        return [
            section
            for part in window.parts
            for section in self.index.sections(
                part.group.first_row + part.start, part.group.first_row + part.stop
            )
        ]
