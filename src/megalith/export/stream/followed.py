"""`FollowedModel`: a version of a stream over its snapshot, as a server's machine holds it.

    model = FollowedModel.of(FrozenModel(folder))               # of a snapshot
    after = model.advance(content, position, uri)                # the version that a delta makes of it
    write_local_delta(model, after, content, folder)             # what a server loads over the version before
    write_whole(after, folder)                                   # the same version as a frozen model

Rows of the snapshot are mapped from its files, not held; changed rows and tables that were replaced are.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from megalith.checkpoint.manifest import FileRecord
from megalith.core.errors import ServeError
from megalith.core.files import write_atomic
from megalith.export.delta.folder import TableDelta, content_checksum, save_delta
from megalith.export.folder import FrozenModel, list_files, new_model, write_manifest
from megalith.export.manifest import CHECKS_FILE, DENSE_FILE, INPUTS, REPORT, ModelManifest
from megalith.export.stream.changes import DeltaContent, WholeTable, changed_table, row_numbers
from megalith.export.stream.reader import Position
from megalith.export.tensor_file import create_tensors, write_tensors
from megalith.ops.frozen.changed_rows import merge_changes

Changed = tuple[Tensor, Tensor]
"""Numbers of rows, rising, and their content."""


@dataclass(frozen=True, eq=False)
class FollowedModel:
    """One version; a newer one is another object that shares what did not change."""

    folder: Path
    """Of the snapshot, for schema and vocabulary."""
    manifest: ModelManifest
    tables: Mapping[str, Mapping[str, Tensor]]
    """As in the snapshot, or as they came whole since."""
    changed: Mapping[str, Changed]
    """By table, rows that take the place of these."""
    dense: Mapping[str, Tensor]

    @staticmethod
    def of(model: FrozenModel) -> FollowedModel:
        """A snapshot."""
        manifest = model.manifest
        tables = {record.name: model.table(record.name) for record in manifest.tables}
        return FollowedModel(model.folder, manifest, tables, {}, model.weights())

    @property
    def changed_bytes(self) -> int:
        """Of rows that are held beside those of the snapshot."""
        return sum(rows.numel() + 8 * len(numbers) for numbers, rows in self.changed.values())

    @property
    def table_bytes(self) -> int:
        """Of all tables."""
        return sum(record.bytes for record in self.manifest.tables)

    def advance(self, content: DeltaContent, position: Position, where: str) -> FollowedModel:
        """The version at a position, given all that changed since this one; `where` names the stream."""
        return self._advanced(content, position, where)[0]

    def parts_of(self, content: DeltaContent, where: str) -> dict[str, Changed | WholeTable]:
        """What a server loads over this version, by table: rows where they have a place, else the table."""
        records = {record.name: record for record in self.manifest.tables}
        found: dict[str, Changed | WholeTable] = {}
        for name, change in content.tables.items():
            if name not in records:
                raise ServeError(
                    f"{where} changes a table '{name}' that its snapshot does not have; publish elsewhere."
                )
            if isinstance(change, WholeTable):
                found[name] = change
                continue
            numbers, rows = row_numbers(records[name], self.tables[name], change, where)
            found[name] = (
                changed_table(records[name], self._held(name), change, where)
                if numbers is None
                else (numbers, rows)
            )
        return found

    def _held(self, name: str) -> Mapping[str, Tensor]:
        """A table with its changes in place."""
        tensors = self.tables[name]
        if name not in self.changed:
            return tensors
        numbers, rows = self.changed[name]
        whole = tensors["rows"].clone()
        whole[numbers] = rows
        return {**tensors, "rows": whole}

    def _advanced(
        self, content: DeltaContent, position: Position, where: str
    ) -> tuple[FollowedModel, dict[str, Changed | WholeTable]]:
        parts = self.parts_of(content, where)
        tables, changed = dict(self.tables), dict(self.changed)
        records = {record.name: record for record in self.manifest.tables}
        for name, part in parts.items():
            if isinstance(part, WholeTable):
                file = records[name].file
                tables[name], records[name] = part.tensors, part.record.model_copy(update={"file": file})
                changed.pop(name, None)
            else:
                before = changed.get(name)
                changed[name] = part if before is None else merge_changes(before, part)
        files = dict(self.manifest.files)
        # Outputs of samples are those of the snapshot.
        files.pop(CHECKS_FILE, None)
        for name in {records[table].file for table in parts} | ({DENSE_FILE} if content.dense else set()):
            # Nobody reads the whole file to know it again: a version of a stream is known by its record.
            text = json.dumps([files[name].crc32, position.record]).encode()
            files[name] = FileRecord(bytes=files[name].bytes, crc32=zlib.crc32(text))
        manifest = self.manifest.model_copy(
            update={"step": position.step, "tables": tuple(records.values()), "files": files}
        )
        dense = dict(content.dense) or self.dense
        return replace(self, manifest=manifest, tables=tables, changed=changed, dense=dense), parts


def write_local_delta(
    before: FollowedModel, content: DeltaContent, position: Position, where: str, folder: Path
) -> FollowedModel:
    """Writes what a server that has `before` loads to serve the version at a position; that version. Schema
    and vocabulary stay those of the snapshot."""
    after, parts = before._advanced(content, position, where)
    changes, tensors = [], dict[str, Tensor]()
    for name, part in parts.items():
        if isinstance(part, WholeTable):
            size = sum(tensor.numel() * tensor.element_size() for tensor in part.tensors.values())
            changes.append(TableDelta(name=name, kind="whole", rows=part.record.rows, bytes=size))
            tensors |= {f"{name}/{key}": tensor for key, tensor in part.tensors.items()}
            continue
        numbers, rows = part
        size = rows.numel() + 8 * len(numbers)
        changes.append(TableDelta(name=name, kind="rows", rows=len(numbers), bytes=size))
        tensors |= {f"{name}/changed": numbers, f"{name}/rows": rows}

    def fill(target: Path) -> None:
        if content.dense:
            write_tensors(target / DENSE_FILE, content.dense)

    save_delta(folder, content_checksum(before.manifest), after.manifest, changes, tensors, fill)
    return after


def write_whole(model: FollowedModel, folder: Path) -> FollowedModel:
    """Writes a version as a frozen model of its own; the same version over that folder."""
    files: dict[str, dict[str, Tensor]] = {}
    for record in model.manifest.tables:
        held = files.setdefault(record.file, {})
        held |= {f"{record.name}/{key}": tensor for key, tensor in model.tables[record.name].items()}
    with new_model(folder) as target:
        for file, tensors in files.items():
            shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
            for name, room in create_tensors(target / file, shapes).items():
                room.copy_(tensors[name])
                table = name.removesuffix("/rows")
                if name.endswith("/rows") and table in model.changed:
                    numbers, rows = model.changed[table]
                    room[numbers] = rows
        write_tensors(target / DENSE_FILE, model.dense)
        _copy_rest(model.folder, target)
        write_manifest(target, model.manifest.model_copy(update={"files": list_files(target)}))
    # What has been written is not read again to be checked.
    return FollowedModel.of(FrozenModel(folder, verify=False))


def _copy_rest(source: Path, target: Path) -> None:
    """Schema and vocabulary, with which a server reads raw columns; and that no gate was asked."""
    if (source / INPUTS).is_dir():
        shutil.copytree(source / INPUTS, target / INPUTS)
    write_atomic(target / REPORT, json.dumps({"gate": None}, indent=1) + "\n")
