"""What a run keeps of the data it was trained on: schema and vocabulary, no rows; and a model of one's own.

RUN/inputs/inputs.json      where they came from; size and checksum of each file
RUN/inputs/schema.json      as `data prepare` wrote it
RUN/inputs/vocabulary/      as `data prepare` wrote it, by hard links where the disk is the same
RUN/inputs/model/FILE.py    the file of a model of one's own

With it, raw rows become what the model was trained on in any folder and without the data. It is written once,
whole or not at all, when the run begins.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from megalith.checkpoint.manifest import FileRecord
from megalith.checkpoint.tensor_file import is_intact
from megalith.core.config import Config, parse_config
from megalith.core.errors import DataError, storage_errors
from megalith.core.files import new_folder, read_json_object, remove_partials, write_atomic
from megalith.data.dataset import SCHEMA_FILE, Dataset
from megalith.data.prepare.vocabulary import FOLDER as VOCABULARY

LIST_FILE, MODEL = "inputs.json", "model"
_PIECE_BYTES = 1 << 22
VERSION = 1


class InputList(Config):
    """The content of `inputs.json`."""

    format: Literal["megalith-run-inputs"] = "megalith-run-inputs"
    version: int = VERSION
    origin: str
    """The data set that the files were taken from."""
    files: dict[str, FileRecord]


class RunInputs:
    """The folder of a run's inputs; the trainer writes it, whoever uses the trained model reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def exists(self) -> bool:
        """Whether the run has them; one of an earlier release has not."""
        return self.folder.is_dir()

    def model_file(self, name: str) -> Path:
        """Where the file of a model of one's own is kept."""
        return self.folder / MODEL / name

    def write(self, dataset: Dataset, model_file: Path | None = None) -> None:
        """Takes what is needed of a data set, and the file of the model."""
        remove_partials(self.folder.parent, self.folder.name)
        with storage_errors(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(self.folder, overwrite=True) as folder:
            names = _names(dataset.folder)
            for name in names:
                (folder / name).parent.mkdir(exist_ok=True)
                _link(dataset.folder / name, folder / name)
            if model_file is not None:
                (folder / MODEL).mkdir()
                shutil.copyfile(model_file, folder / MODEL / model_file.name)
            listed = InputList(
                origin=str(dataset.folder.absolute()),
                files={name: _record(folder / name) for name in names},
            )
            write_atomic(folder / LIST_FILE, listed.model_dump_json(indent=1) + "\n")

    def dataset(self) -> Dataset:
        """The data set without its rows, from a schema that is whole."""
        self._check([SCHEMA_FILE])
        return Dataset(self.folder)

    def check_vocabulary(self) -> None:
        """Reads every file; one that is damaged or missing is named."""
        self._check(self._list().files)

    def _check(self, names: Iterable[str]) -> None:
        listed = self._list()
        for name in names:
            record = listed.files.get(name)
            if record is None or not is_intact(self.folder / name, record):
                raise DataError(
                    f"{self.folder / name} is damaged or missing; copy it from {Path(listed.origin) / name}, "
                    "or from another copy of the run."
                )

    def _list(self) -> InputList:
        path, fix = self.folder / LIST_FILE, "copy it from another copy of the run"
        content = read_json_object(path, fix=fix)
        if content.get("version") != VERSION:
            raise DataError(
                f"{path} has version {content.get('version')}, this package reads {VERSION}; {fix}."
            )
        return parse_config(InputList, content, str(path), fix, DataError)


def _names(data: Path) -> list[str]:
    """The files that are kept of a data set, below its folder."""
    vocabulary = sorted(path for path in (data / VOCABULARY).glob("*") if path.is_file())
    return [SCHEMA_FILE, *(f"{VOCABULARY}/{path.name}" for path in vocabulary)]


def _link(source: Path, target: Path) -> None:
    """The same file under another name; a copy where disks differ or links are not to be had."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _record(path: Path) -> FileRecord:
    checksum = size = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            checksum, size = zlib.crc32(piece, checksum), size + len(piece)
    return FileRecord(bytes=size, crc32=checksum)
