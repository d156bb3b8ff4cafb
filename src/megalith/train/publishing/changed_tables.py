"""`ChangedTables`: the rows of a model that changed since they were last published, copied as they are now.

    tables = ChangedTables(learner.embeddings, config)
    tables.begin(records)                 # from here on changes count; records: as the snapshot has tables
    taken = tables.take(work)             # by the thread that trains: copies, some rows at a time
    content = taken.encode()              # by any thread
    tables.give_back(taken)               # or tables.keep(taken): the thread that trains again

Rows of tables in memory and over a disk are known by the batches that touched them. Those of dynamic tables,
which come and go, are compared with what was published by a digest of each. Tables in chunks, whose rows are
of unequal length, are sent whole; so is one of which more changed than there is room for.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from megalith.core.errors import MegalithError
from megalith.core.schema import TableSpec
from megalith.embeddings.changes.row_digests import RowDigests
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.row_block import WEIGHT, RowBlock
from megalith.embeddings.table_state import ReadableShard, TableState
from megalith.export.manifest import FrozenTableRecord
from megalith.export.stream.changes import RowChanges, TableChange, WholeTable
from megalith.export.tables import TableSource, freeze_table
from megalith.export.tensor_file import read_tensors
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat, row_bounds, stored_scales
from megalith.train.learner.lookup_model import Tables
from megalith.train.publishing.settings import PublishConfig

CONSUMER = "publish"
_PIECE_BYTES = 4 << 20
_NONE = torch.empty(0, dtype=torch.int64)


class RowFormChangedError(MegalithError):
    """Rows of a table do not fit into the form that its snapshot has; it has to be sent whole."""

    def __init__(self, table: str) -> None:
        super().__init__(f"Rows of table '{table}' have outgrown float16 scales; it is sent whole next.")
        self.table = table


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Rows of a table as they were."""

    record: FrozenTableRecord
    ids: Tensor
    weights: list[Tensor]
    """In the type of the table, in the order of ids, some rows each."""
    deleted: Tensor = _NONE
    unknown: Tensor | None = None

    def encode(self) -> RowChanges:
        """As they are sent."""
        form, name = RowFormat(self.record.precision, self.record.scale), self.record.name
        row_bytes = form.row_bytes(self.record.dim)
        encoded = [_encoded(piece.float(), form, name) for piece in self.weights]
        rows = torch.cat([torch.empty(0, row_bytes, dtype=torch.uint8), *encoded])
        unknown = None if self.unknown is None else _encoded(self.unknown.float(), form, name)
        return RowChanges(self.ids, rows, self.deleted, unknown)


@dataclass(eq=False)
class TakenTables:
    """What changed in all tables."""

    rows: dict[str, ChangedRows] = field(default_factory=dict)
    whole: dict[str, WholeTable] = field(default_factory=dict)
    positions: dict[str, Tensor] = field(default_factory=dict)
    """Touched rows that were taken, to be given back where publishing fails."""
    compared: list[str] = field(default_factory=list)
    """Dynamic tables whose digests are kept where it does not."""
    folder: Path | None = None
    """Of the files of whole tables."""

    def encode(self) -> dict[str, TableChange]:
        """As a version has it; tables that did not change are left out."""
        rows = {name: taken.encode() for name, taken in self.rows.items()}
        return {**rows, **self.whole}

    def close(self) -> None:
        """Removes files."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class ChangedTables:
    """Knows what was published of each table; used by the thread that trains."""

    def __init__(self, embeddings: Tables, tables: Sequence[TableSpec], config: PublishConfig) -> None:
        self._embeddings, self._config = embeddings, config
        self._specs = {spec.name: spec for spec in tables}
        self._records: dict[str, FrozenTableRecord] = {}
        self._digests: dict[str, RowDigests] = {}
        self._whole: set[str] = set()
        """Tables that are sent whole next, whatever changed."""

    def sources(self) -> dict[str, TableSource]:
        """All tables as they are now."""
        states = self._embeddings.table_states()
        return {
            name: TableSource(spec, states[name], states.get(f"{name}.unknown"))
            for name, spec in self._specs.items()
        }

    def begin(self, records: Sequence[FrozenTableRecord]) -> None:
        """What the tables are now has been published, as these records say."""
        self._records = {record.name: record for record in records}
        self._whole.clear()
        for name, source in self.sources().items():
            touched = _touched(source.state)
            if touched is not None:
                touched.watch(CONSUMER)
            elif source.state.is_raw and source.chunk is None:
                digests = self._digests[name] = RowDigests()
                for _ in digests.changed(_weights(source.state)):
                    pass
                digests.keep()

    def take(self, work: Path) -> TakenTables:
        """Copies what changed; it counts as published from here on. Whole tables are written below `work`."""
        taken = TakenTables()
        try:
            self._take(taken, work)
        except BaseException:
            self.give_back(taken)
            taken.close()
            raise
        return taken

    def _take(self, taken: TakenTables, work: Path) -> None:
        room, sources = self._config.buffer, self.sources()
        # The largest are left for when there is no room any more.
        for name in sorted(sources, key=lambda name: self._touched_bytes(sources[name])):
            source, touched = sources[name], _touched(sources[name].state)
            if self._records[name].chunk is not None:
                self._take_whole(taken, name, source, work)
            elif touched is None:
                room -= self._take_dynamic(taken, name, source, work, room)
            elif (size := self._touched_bytes(source)) or name in self._whole:
                positions = taken.positions[name] = touched.take(CONSUMER)
                if name in self._whole or size > room:
                    self._take_whole(taken, name, source, work)
                else:
                    taken.rows[name] = ChangedRows(self._records[name], positions, _copied(source, positions))
                    room -= size

    def _touched_bytes(self, source: TableSource) -> int:
        """What copies of the rows that batches touched take; 0 of tables where that is not known."""
        touched = _touched(source.state)
        return 0 if touched is None else touched.count(CONSUMER) * _row_bytes(source)

    def _take_dynamic(self, taken: TakenTables, name: str, source: TableSource, work: Path, room: int) -> int:
        """Of a table whose ids come and go; the bytes of what was copied."""
        digests, size = self._digests[name], 0
        ids, weights = [_NONE], []
        fits = name not in self._whole
        for block in digests.changed(_weights(source.state)):
            # To the end in any case: digests of all rows are wanted.
            size += len(block.ids) * _row_bytes(source)
            fits = fits and size <= room
            if fits:
                ids.append(torch.as_tensor(block.ids))
                weights.append(block.parts[WEIGHT])
        taken.compared.append(name)
        if not fits:
            self._take_whole(taken, name, source, work)
            return 0
        order = torch.cat(ids).argsort()
        rows = [torch.cat(weights)[order]] if weights else []
        unknown = None
        if source.unknown is not None:
            unknown = next(iter(source.unknown.blocks(_PIECE_BYTES))).parts[WEIGHT][0:1].clone()
        found = torch.cat(ids)[order]
        taken.rows[name] = ChangedRows(self._records[name], found, rows, digests.gone, unknown)
        return size

    def _take_whole(self, taken: TakenTables, name: str, source: TableSource, work: Path) -> None:
        if taken.folder is None:
            taken.folder = work / f"whole-{uuid.uuid4().hex[:8]}"
            taken.folder.mkdir(parents=True)
        path = taken.folder / f"{len(taken.whole)}.safetensors"
        record = freeze_table(source, self._config.precision_of(name), path)
        tensors = {key.removeprefix(f"{name}/"): one for key, one in read_tensors(path).items()}
        taken.whole[name] = WholeTable(record, tensors)

    def keep(self, taken: TakenTables) -> None:
        """It was published."""
        for name in taken.compared:
            self._digests[name].keep()
        for name, whole in taken.whole.items():
            self._records[name] = whole.record
            self._whole.discard(name)

    def give_back(self, taken: TakenTables, error: BaseException | None = None) -> None:
        """It was not: the next version has it."""
        if isinstance(error, RowFormChangedError):
            self._whole.add(error.table)
        states = self._embeddings.table_states() if taken.positions else {}
        for name, positions in taken.positions.items():
            touched = _touched(states[name])
            assert touched is not None
            touched.give_back(CONSUMER, positions)


def _touched(state: TableState) -> TouchedRows | None:
    return state.shards[0].touched


def _row_bytes(source: TableSource) -> int:
    """Of a row that is copied, with its id."""
    return source.spec.dim * 4 + 8


def _copied(source: TableSource, positions: Tensor) -> list[Tensor]:
    """Weights of rows of a table whose shard can read single rows, some at a time."""
    shard = cast(ReadableShard, source.state.shards[0])
    step = max(1, _PIECE_BYTES // (4 * source.spec.dim))
    first = shard.rows[0]
    return [shard.read(piece + first)[WEIGHT] for piece in positions.split(step)]


def _weights(state: TableState) -> Iterator[RowBlock]:
    """Blocks of weights alone: when an id was last used is no change."""
    for block in state.blocks(_PIECE_BYTES):
        yield RowBlock(block.ids, block.columns, {WEIGHT: block.parts[WEIGHT]})


def _encoded(weights: Tensor, form: RowFormat, table: str) -> Tensor:
    if form.scale == "float16":
        scales = stored_scales(*row_bounds(weights, f"table '{table}'"), form)
        if not all(bool(one.isfinite().all()) for one in scales):
            raise RowFormChangedError(table)
    return encode_rows(weights, form, f"table '{table}'")
