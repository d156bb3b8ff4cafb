"""A delta of a frozen model: the rows that changed, and what else did, over a version that someone has.

    delta.json              what this module describes, the manifest of the new version in it
    rows.safetensors        `TABLE/changed` (int64, rising) and `TABLE/rows` of tables of which some rows
                            changed; all tensors of tables that changed otherwise
    dense.safetensors       weights of the program, where they changed
    checks.safetensors, report.json     those of the new version, where they changed
    inputs/                 all of it, where any of it changed

The base is named by a checksum over the files of its tables and weights, so that a delta is applied to what
it was made from and to nothing else; the result has the checksum of the new version, over which the next
delta can be made. Nothing of it runs code, and it is written whole or not at all.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from megalith.checkpoint.manifest import FileRecord
from megalith.checkpoint.tensor_file import is_intact
from megalith.core.config import Config, parse_config
from megalith.core.errors import ServeError, StorageError
from megalith.core.files import new_folder, read_json_object, remove_partials, write_atomic
from megalith.export.folder import FrozenModel, is_model, list_files
from megalith.export.manifest import CHECKS_FILE, DENSE_FILE, INPUTS, FrozenTableRecord, ModelManifest
from megalith.export.tensor_file import create_tensors, read_tensors

DELTA, ROWS_FILE = "delta.json", "rows.safetensors"
FORMAT: Literal["megalith-frozen-delta"] = "megalith-frozen-delta"
VERSION = 1
MOST_CHANGED = 0.25
"""Share of a table's rows above which the whole table is sent."""
_FIX = "make the delta again"
_PIECE_ROWS = 1 << 20


class TableDelta(Config):
    """What became of a table."""

    name: str
    kind: Literal["rows", "whole"]
    """`rows`: some rows have other content. `whole`: all of its tensors are in the delta."""
    rows: int = Field(ge=0)
    """That are in the delta."""
    bytes: int = Field(ge=0)


class DeltaManifest(Config):
    """The content of `delta.json`."""

    format: Literal["megalith-frozen-delta"] = FORMAT
    version: int = VERSION
    base: int
    """Checksum of the version that this is over."""
    result: int
    """Checksum of the version that it makes."""
    tables: tuple[TableDelta, ...]
    """Those that changed."""
    manifest: ModelManifest
    """Of the new version, as its whole folder would have it."""
    files: dict[str, FileRecord]
    """Every other file of the delta."""


def content_checksum(manifest: ModelManifest) -> int:
    """What tells versions apart: a checksum over the checksums of tables and weights. Tuning changes none."""
    names = sorted({DENSE_FILE, *(table.file for table in manifest.tables)} & set(manifest.files))
    listed = {name: [manifest.files[name].bytes, manifest.files[name].crc32] for name in names}
    return zlib.crc32(json.dumps(listed, sort_keys=True).encode())


def is_delta(path: Path) -> bool:
    """Whether a folder holds a delta, be it damaged."""
    return (path / DELTA).is_file()


def write_delta(old: Path | str, new: Path | str, out: Path | str) -> DeltaManifest:
    """Writes what turns one frozen model into another of the same tables; the delta that was written."""
    target = Path(out)
    if target.exists() and not is_delta(target):
        raise StorageError(f"{target} exists and is no delta; choose another folder.")
    before, after = _frozen(Path(old)), _frozen(Path(new))
    _refuse_other_model(before, after)
    tables, tensors = [], dict[str, Tensor]()
    for record in after.manifest.tables:
        found = _changes(before, after, record)
        if found is not None:
            tables.append(found[0])
            tensors |= {f"{record.name}/{key}": tensor for key, tensor in found[1].items()}

    def fill(folder: Path) -> None:
        for name in _changed_files(before.manifest, after.manifest):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(after.folder / name, folder / name)

    return save_delta(target, content_checksum(before.manifest), after.manifest, tables, tensors, fill)


def save_delta(
    target: Path,
    base: int,
    manifest: ModelManifest,
    tables: Sequence[TableDelta],
    tensors: Mapping[str, Tensor],
    fill: Callable[[Path], None],
) -> DeltaManifest:
    """Writes the folder of a delta over a version: tables that changed, with their tensors as
    `TABLE/TENSOR`, and what else `fill` puts there."""
    remove_partials(target.parent, target.name)
    with new_folder(target, overwrite=True) as folder:
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        for name, room in create_tensors(folder / ROWS_FILE, shapes).items():
            room.copy_(tensors[name])
        fill(folder)
        delta = DeltaManifest(
            base=base,
            result=content_checksum(manifest),
            tables=tuple(tables),
            manifest=manifest,
            files=list_files(folder),
        )
        content = delta.model_dump(mode="json")
        text = json.dumps({**content, "crc32": _checksum(content)}, indent=1)
        write_atomic(folder / DELTA, text + "\n")
    return delta


def read_delta(folder: Path) -> DeltaManifest:
    """The manifest of a delta, checked by itself."""
    path = folder / DELTA
    content = read_json_object(path, fix=_FIX, error=ServeError)
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ServeError(f"{path} is no delta that this package reads; {_FIX}.")
    if content.pop("crc32", None) != _checksum(content):
        raise ServeError(f"{path} is damaged: its checksum is another; {_FIX}.")
    return parse_config(DeltaManifest, content, str(path), _FIX, ServeError)


class FrozenDelta:
    """A delta, opened; every byte of it was checked."""

    def __init__(
        self, folder: Path | str, *, verify: bool = True, between: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = Path(folder)
        self.delta = read_delta(self.folder)
        for name, record in self.delta.files.items():
            path = self.folder / name
            if name.startswith("/") or ".." in Path(name).parts or "\0" in name:
                raise ServeError(f"{self.folder / DELTA} names '{name}', a file elsewhere; {_FIX}.")
            if not path.is_file() or path.is_symlink() or path.stat().st_size != record.bytes:
                raise ServeError(f"{path} is missing or has another size; {_FIX}.")
            if verify and not is_intact(path, record, between):
                raise ServeError(f"{path} is damaged: its checksum is another; {_FIX}.")
        self._tensors = read_tensors(self.folder / ROWS_FILE)

    @property
    def manifest(self) -> ModelManifest:
        """Of the new version."""
        return self.delta.manifest

    def change(self, table: str) -> TableDelta | None:
        """What became of a table; None where nothing did."""
        return next((one for one in self.delta.tables if one.name == table), None)

    def tensors(self, table: str) -> dict[str, Tensor]:
        """Those of a table that changed: `changed` and `rows`, or all of a whole one."""
        prefix = f"{table}/"
        found = {name: one for name, one in self._tensors.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): tensor for name, tensor in found.items()}

    def weights(self) -> dict[str, Tensor] | None:
        """Of the program; None where they are those of the base."""
        return read_tensors(self.folder / DENSE_FILE) if DENSE_FILE in self.delta.files else None

    def checks(self) -> dict[str, Tensor] | None:
        """Samples and outputs; None where they are those of the base."""
        return read_tensors(self.folder / CHECKS_FILE) if CHECKS_FILE in self.delta.files else None


def _frozen(folder: Path) -> FrozenModel:
    """A version that is compared, with a sentence for what people name instead of one."""
    if is_delta(folder):
        raise ServeError(f"{folder} is a delta itself; name the whole folder of that version.")
    if not is_model(folder):
        raise ServeError(f"{folder} is no exported model; make one with `megalith export RUN --out DIR`.")
    return FrozenModel(folder)


def _refuse_other_model(before: FrozenModel, after: FrozenModel) -> None:
    names = [{table.name for table in model.manifest.tables} for model in (before, after)]
    if names[0] != names[1]:
        different = ", ".join(f"'{name}'" for name in sorted(names[0] ^ names[1])[:3])
        raise ServeError(
            f"{after.folder} has other tables than {before.folder} ({different}); serve it as a whole."
        )


def _changed_files(before: ModelManifest, after: ModelManifest) -> list[str]:
    """Files that the delta has a copy of. Schema and vocabulary are read as one, so they come together."""
    tables = {table.file for table in after.tables}
    changed = [name for name, file in after.files.items() if before.files.get(name) != file]
    inputs = f"{INPUTS}/"
    if any(name.startswith(inputs) for name in {*changed, *(before.files.keys() - after.files.keys())}):
        changed += [name for name in after.files if name.startswith(inputs) and name not in changed]
    return [name for name in changed if name not in tables]


def _changes(
    before: FrozenModel, after: FrozenModel, record: FrozenTableRecord
) -> tuple[TableDelta, dict[str, Tensor]] | None:
    """What the delta has of a table, None where nothing changed."""
    own = next(one for one in before.manifest.tables if one.name == record.name)
    old, new = before.table(record.name), after.table(record.name)
    same_form = own.model_copy(update={"file": record.file, "bytes": record.bytes}) == record
    others = all(key in old and torch.equal(old[key], new[key]) for key in new if key != "rows")
    comparable = same_form and others and old["rows"].shape == new["rows"].shape
    if comparable and record.chunk is None:
        changed = _changed_rows(old["rows"], new["rows"])
        if not len(changed):
            return None
        if len(changed) <= MOST_CHANGED * len(new["rows"]):
            rows = new["rows"][changed]
            size = rows.numel() + 8 * len(changed)
            found = TableDelta(name=record.name, kind="rows", rows=len(changed), bytes=size)
            return found, {"changed": changed, "rows": rows}
    elif comparable and torch.equal(old["rows"], new["rows"]):
        return None
    return TableDelta(name=record.name, kind="whole", rows=record.rows, bytes=record.bytes), dict(new)


def _changed_rows(old: Tensor, new: Tensor) -> Tensor:
    """Numbers of rows with other bytes, rising."""
    found = [torch.empty(0, dtype=torch.int64)]
    for begin in range(0, len(new), _PIECE_ROWS):
        pieces = (one[begin : begin + _PIECE_ROWS] for one in (old, new))
        differs = torch.ne(*pieces).any(dim=1)
        found.append(differs.nonzero().flatten() + begin)
    return torch.cat(found)


def _checksum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
