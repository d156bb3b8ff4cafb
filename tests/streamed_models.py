"""A stream of small versions, and the model that its writer has at each: what readers must arrive at."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from megalith.export.backends.conformance.models import ModelInMemory, probe_model
from megalith.export.stream.changes import (
    DeltaContent,
    RowChanges,
    TableChange,
    WholeTable,
    changed_table,
    read_content,
)
from megalith.export.stream.followed import FollowedModel
from megalith.export.stream.reader import Position, StreamReader
from megalith.export.stream.records import VersionRecord
from megalith.export.stream.storage import StreamStorage
from megalith.export.stream.writer import StreamWriter
from served_models import write_model

STREAM = "5" * 32
_PLAIN = ("t_int8", "t_int4", "t_half", "t_float")


class SmallPublisher:
    """Changes a model at random and writes its versions."""

    def __init__(self, storage: StreamStorage, work: Path, seed: int = 0, stream: str = STREAM) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        self.random = torch.Generator().manual_seed(seed)
        self.model = probe_model()
        self.writer = StreamWriter(storage, stream, self.model.manifest.name)
        self.versions: dict[int, ModelInMemory] = {}
        """The model as of each version."""

    def snapshot(self) -> VersionRecord:
        """Writes a version whole."""
        folder = write_model(self.work / "frozen", self.model, checks=0)
        step = self.writer.next_number
        record = self.writer.add_snapshot(folder, step, 1000.0 + step)
        shutil.rmtree(folder)
        self.versions[record.number] = self.model
        return record

    def delta(self) -> VersionRecord:
        """Changes some rows, ids and weights, and writes what changed."""
        content = self.change()
        step = self.writer.next_number
        record = self.writer.add_delta(content, step, 1000.0 + step, self.work)
        self.versions[record.number] = self.model
        return record

    def change(self) -> DeltaContent:
        """What changed; the model is the new one from here on."""
        model = self.model
        tables: dict[str, TableChange] = {}
        for name in _PLAIN:
            ids = self._some(torch.arange(len(model.tables[name]["rows"])), 5)
            tables[name] = RowChanges(ids, self._rows(name, len(ids)))
        tables["t_dynamic"] = self._dynamic_change()
        adaptive = model.tables["t_adaptive"]
        if self._number(3) == 0:
            record = next(one for one in model.manifest.tables if one.name == "t_adaptive")
            tables["t_adaptive"] = WholeTable(record, {**adaptive, "rows": adaptive["rows"] ^ 1})
        dense = {name: weight + 0.001 for name, weight in model.dense.items()}
        self.model = _after(model, tables, dense)
        return DeltaContent(tables, dense)

    def _dynamic_change(self) -> RowChanges:
        held = self.model.tables["t_dynamic"]["ids"]
        record = next(one for one in self.model.manifest.tables if one.name == "t_dynamic")
        assert record.unknown is not None
        own = torch.cat([held[: record.unknown], held[record.unknown + 1 :]])
        deleted = self._some(own, 2) if self._number(2) else own[:0]
        kept = own[~torch.isin(own, deleted)]
        new = torch.randint(1000, 2000, (self._number(3),), generator=self.random)
        ids = torch.cat([self._some(kept, 4), new]).unique()
        unknown = self._rows("t_dynamic", 1) if self._number(2) else None
        return RowChanges(ids, self._rows("t_dynamic", len(ids)), deleted, unknown)

    def _some(self, given: Tensor, count: int) -> Tensor:
        chosen = torch.randperm(len(given), generator=self.random)[:count]
        return given[chosen].sort().values

    def _rows(self, name: str, count: int) -> Tensor:
        rows = self.model.tables[name]["rows"]
        # Content of other rows: always a valid encoding.
        return rows[torch.randint(len(rows), (count,), generator=self.random)].clone()

    def _number(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self.random))


def _after(
    model: ModelInMemory, changes: Mapping[str, TableChange], dense: Mapping[str, Tensor]
) -> ModelInMemory:
    tables, records = dict(model.tables), {record.name: record for record in model.manifest.tables}
    for name, change in changes.items():
        whole = (
            change
            if isinstance(change, WholeTable)
            else changed_table(records[name], tables[name], change, "test")
        )
        tables[name], records[name] = whole.tensors, whole.record
    manifest = model.manifest.model_copy(update={"tables": tuple(records.values())})
    return replace(model, manifest=manifest, tables=tables, dense=dense)


def same_content(model: FollowedModel, wanted: ModelInMemory) -> bool:
    """Whether rows, ids and weights are these, bit for bit."""
    for record in wanted.manifest.tables:
        held, own = dict(model.tables[record.name]), wanted.tables[record.name]
        if record.name in model.changed:
            numbers, rows = model.changed[record.name]
            held["rows"] = held["rows"].clone()
            held["rows"][numbers] = rows
        if held.keys() != own.keys() or not all(torch.equal(held[key], own[key]) for key in own):
            return False
    mine = next(one for one in model.manifest.tables if one.name == "t_dynamic")
    theirs = next(one for one in wanted.manifest.tables if one.name == "t_dynamic")
    dense = all(torch.equal(model.dense[name], weight) for name, weight in wanted.dense.items())
    return dense and (mine.rows, mine.unknown) == (theirs.rows, theirs.unknown)


def taken(
    reader: StreamReader, folder: Path, position: Position | None = None, model: FollowedModel | None = None
) -> tuple[FollowedModel | None, Position | None, str]:
    """What a reader arrives at from a version or from nothing, and why it goes no further."""
    found = reader.catch_up(position)
    if found.snapshot is not None:
        target = folder / f"snapshot-{found.snapshot.number}"
        model = FollowedModel.of(reader.fetch_snapshot(found.snapshot, target))
        position = Position.of(found.snapshot)
    for record in found.deltas:
        assert model is not None
        path = folder / f"{record.number}.safetensors"
        reader.fetch_delta(record, path)
        position = Position.of(record)
        model = model.advance(read_content(path), position, "test")
    return model, position, found.problem
