"""Prepared data sets in object stores: schema and vocabulary are copied, rows are read where they are."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from megalith.core.errors import DataError
from megalith.data.dataset import SCHEMA_FILE, Dataset
from megalith.data.places import copy_here, is_remote, place_text
from megalith.data.prepare.vocabulary import FOLDER as VOCABULARY


def transforms_of(place: Path, owner: object) -> Path:
    """The folder of a data set's schema and vocabulary: a copy, which lives as long as `owner`, of one in a
    store."""
    if not is_remote(place):
        return place
    folder = Path(tempfile.mkdtemp(prefix="megalith-stored-"))
    weakref.finalize(owner, shutil.rmtree, folder, True)
    copy_here(place, (SCHEMA_FILE, VOCABULARY), folder)
    if not (folder / SCHEMA_FILE).exists():
        raise DataError(
            f"{place_text(place)} is not a prepared data set ({SCHEMA_FILE} is missing); copy one there that "
            "`megalith data prepare` made."
        )
    return folder


class StoredDataset(Dataset):
    """A prepared data set whose rows are in an object store."""

    def __init__(self, place: Path) -> None:
        self.place = place
        super().__init__(transforms_of(place, self))

    def files(self, split: str) -> list[Path]:
        """Where the Parquet parts of a split are; readers find out whether they exist."""
        text, _, options = place_text(self.place).partition("?")
        suffix = f"?{options}" if options else ""
        return [Path(f"{text.rstrip('/')}/{name}{suffix}") for name in self.split(split).files]
