"""A frozen model's folder, written whole or not at all and read with every byte checked.

with new_model(path) as folder:                 # a folder beside it, which takes the name at the end
    record = freeze_table(source, "int8", folder / table_file(0))
    ...
    write_manifest(folder, manifest)

model = FrozenModel(path)
model.manifest, model.table("C1")["rows"], model.weights(), model.checks()
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megalith.checkpoint.manifest import FileRecord
from megalith.checkpoint.tensor_file import is_intact
from megalith.core.config import parse_config
from megalith.core.errors import ConfigError, ServeError, StorageError
from megalith.core.files import new_folder, read_json_object, remove_partials, write_atomic
from megalith.export.manifest import (
    CHECKS_FILE,
    DENSE_FILE,
    FORMAT,
    INPUTS,
    MANIFEST,
    READABLE,
    REPORT,
    VERSION,
    ModelManifest,
)
from megalith.export.stored_weights import scales_of
from megalith.export.tensor_file import file_record, read_tensors

_FIX = "export the model again"


def table_file(number: int) -> str:
    """The name of a file of tables."""
    return f"tables-{number:05d}.safetensors"


@contextmanager
def new_model(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` if the block ends without an error; else nothing is there."""
    if path.exists() and not is_model(path):
        raise StorageError(f"{path} exists and is no exported model; choose another folder for --out.")
    remove_partials(path.parent, path.name)
    with new_folder(path, overwrite=True) as folder:
        yield folder


def is_model(path: Path) -> bool:
    """Whether a folder holds a frozen model, be it damaged."""
    try:
        return FORMAT in (path / MANIFEST).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def list_files(folder: Path) -> dict[str, FileRecord]:
    """Every file of a folder but the manifest, by its path within."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: file_record(path) for name, path in names.items() if name != MANIFEST}


def write_manifest(folder: Path, manifest: ModelManifest) -> None:
    """Writes `manifest.json` with a checksum of its content."""
    content = manifest.model_dump(mode="json")
    write_atomic(folder / MANIFEST, json.dumps({**content, "crc32": _checksum(content)}, indent=1) + "\n")


class FrozenModel:
    """A frozen model, opened. Files are checked first, all of them; rows are mapped, not copied."""

    def __init__(self, folder: Path | str, *, verify: bool = True) -> None:
        """`verify` of false skips checksums, not names and sizes: for who has just read or written them."""
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._check_names()
        for name, record in self.manifest.files.items():
            path = self.folder / name
            if not path.is_file() or path.is_symlink():
                raise ServeError(f"{path} is missing; {_FIX}.")
            if path.stat().st_size != record.bytes:
                raise ServeError(
                    f"{path} has {path.stat().st_size:,} bytes and should have {record.bytes:,}; {_FIX}."
                )
            if verify and not is_intact(path, record):
                raise ServeError(f"{path} is damaged: its checksum is another; {_FIX}.")
        self._file = cache(lambda name: read_tensors(self.folder / name))

    @property
    def inputs(self) -> Path:
        """Schema and vocabulary: what makes requests of raw rows."""
        return self.folder / INPUTS

    def table(self, name: str) -> dict[str, Tensor]:
        """`rows` of a table, and where it has them `starts` and `ids`."""
        record = next((each for each in self.manifest.tables if each.name == name), None)
        if record is None:
            raise ConfigError(f"{self.folder} has no table '{name}'.")
        wanted = ["rows"]
        wanted += ["starts"] if record.chunk is not None else []
        wanted += ["ids"] if record.ids == "listed" else []
        tensors = self._file(record.file)
        return {key: self._tensor(tensors, f"{name}/{key}", record.file) for key in wanted}

    def weights(self) -> dict[str, Tensor]:
        """Weights of the program by the names it gives them, as they are stored (`stored_weights`)."""
        tensors = self._file(DENSE_FILE)
        found = {name: self._tensor(tensors, name, DENSE_FILE) for name in self.manifest.program.weights}
        for name in [name for name, tensor in found.items() if tensor.dtype == torch.int8]:
            found[scales_of(name)] = self._tensor(tensors, scales_of(name), DENSE_FILE)
        return found

    def checks(self) -> dict[str, Tensor]:
        """Some held-out samples, and the outputs that the model gives for them."""
        return dict(self._file(CHECKS_FILE)) if CHECKS_FILE in self.manifest.files else {}

    def report(self) -> dict[str, Any]:
        """What the gate measured; empty where the model was frozen without it."""
        return read_json_object(self.folder / REPORT, fix=_FIX, error=ServeError)

    def bytes(self) -> int:
        """Of all files."""
        return sum(record.bytes for record in self.manifest.files.values())

    def _tensor(self, tensors: dict[str, Tensor], name: str, file: str) -> Tensor:
        if name not in tensors:
            raise ServeError(f"{self.folder / file} has no tensor '{name}'; {_FIX}.")
        return tensors[name]

    def _check_names(self) -> None:
        listed = {MANIFEST, *self.manifest.files}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name not in listed:
                raise ServeError(f"{path} is not listed in {MANIFEST}; remove it, or {_FIX}.")
        named = {DENSE_FILE, *(table.file for table in self.manifest.tables)}
        for name in sorted(named - set(self.manifest.files)):
            raise ServeError(f"{self.folder / MANIFEST} does not list {name}, which it needs; {_FIX}.")
        for name in self.manifest.files:
            if name.startswith("/") or ".." in Path(name).parts or "\0" in name:
                raise ServeError(f"{self.folder / MANIFEST} names '{name}', a file elsewhere; {_FIX}.")


def read_manifest(folder: Path) -> ModelManifest:
    """The manifest of a folder, checked by itself."""
    path = folder / MANIFEST
    missing = f"{folder} is no exported model; make one with `megalith export RUN --out {folder}`"
    content = read_json_object(path, fix=_FIX, missing=missing, error=ServeError)
    if content.get("format") != FORMAT:
        raise ServeError(f"{path} is not the manifest of an exported model; {_FIX}.")
    if content.get("version") not in READABLE:
        raise ServeError(
            f"{path} has version {content.get('version')}, this package reads {READABLE[0]} to {VERSION}; "
            f"{_FIX}, or use the release that wrote it."
        )
    if content.pop("crc32", None) != _checksum(content):
        raise ServeError(f"{path} is damaged: its checksum is another; {_FIX}.")
    return parse_config(ModelManifest, content, str(path), _FIX, ServeError)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
