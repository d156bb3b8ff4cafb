"""`DynamicShard`: a dynamic table as checkpoints see it: rows by raw id, with what its map knows of each.

    weight, first, second   as of any table
    last                    the last batch that used the id
    score                   its uses as they count, as `ops.ids.changes.IdBlock` has them
    time                    the latest event time of its uses, 0 where none is kept

Row numbers are in no checkpoint: which row an id has matters to nobody. What else a dynamic table knows
travels as states of its own: see `side_states`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import GROWTH, UTILITY, PartSpec, RowBlock
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.stores.saved_shard import SavedShard
from megalith.embeddings.table_state import TableShard
from megalith.ops.ids.changes import IdBlock
from megalith.ops.stores.start_values import StartValues

if TYPE_CHECKING:
    from megalith.embeddings.stores.dynamic.store import DynamicStore

ID_PARTS = {
    "last": PartSpec(torch.int64, "row"),
    "score": PartSpec(torch.float32, "row"),
    "time": PartSpec(torch.int64, "row"),
}


@dataclass(frozen=True)
class DynamicShard:
    """The ids of a dynamic table that have a row in this process."""

    store: DynamicStore
    table: int
    writes: bool = True
    sparse: bool = True
    """Ids without a row are in no block."""
    files: None = None
    touched: None = None
    """Ids come and go, so they are compared by content."""

    @property
    def rows(self) -> tuple[int, int]:
        """As many as its partitions of the bound: numbers of rows, which are not ids."""
        return self.store.tables[self.table].window.rows

    @property
    def columns(self) -> tuple[int, int]:
        """All of them."""
        return 0, self.store.tables[self.table].spec.dim

    @property
    def specs(self) -> dict[str, PartSpec]:
        """Those of a row, and what is known of its id."""
        return {**self.inner.specs, **ID_PARTS}

    @property
    def start(self) -> StartValues:
        """How the row of an id begins."""
        return self.store.starts[self.table]

    @property
    def chunk(self) -> int | None:
        """Columns of a chunk, where rows are cut into some."""
        return self.inner.chunk

    @property
    def inner(self) -> TableShard:
        """The rows by their numbers."""
        store, own = self.store.places[self.table]
        return store.shard(own, self.writes)

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """Ids with their rows, rising within each block."""
        return blocks_by_id(self._listed(), self.inner, max_bytes)

    def load(self, block: RowBlock) -> int:
        """Gives the ids of a block rows, as far as there is room: where there is not, the best by the policy
        stay, whatever the order of blocks. Ids of other partitions are left alone. Returns the block's
        numbers."""
        ids = torch.as_tensor(block.ids)
        numbers = len(ids) * (self.columns[1] + len(ID_PARTS))
        if not bool(self.store.owns(ids).any()):
            # Not a byte of the rows that others hold is read.
            return numbers
        is_chunked = UTILITY in block.parts
        if tuple(block.columns) != self.columns and not (is_chunked and block.columns[0] == 0):
            raise CheckpointError(
                f"Columns {block.columns} of dynamic table '{self.store.names[self.table]}' are "
                "not whole rows; save it from a table that is not cut by columns."
            )
        columns, specs = (block.columns[0], block.columns[1]), dict(self.specs)
        if is_chunked and self.chunk is not None:
            specs |= _CHUNK_PARTS
        parts = {name: _read(block, name, spec) for name, spec in specs.items()}
        scores = parts.pop("score") * self.store.score_factors[self.table]
        known = IdBlock(ids, torch.empty(0), parts.pop("last"), scores, parts.pop("time"))
        rows, evicted = self.store.ids.load(self.table, known._replace(rows=torch.empty_like(ids)))
        self.store.leave(evicted, self.store.ids.batch)
        kept = (rows >= 0).nonzero().view(-1)
        kept = kept[rows[kept].argsort()]
        if self.chunk is not None:
            self.store.chunks.load(self.table, rows[kept].long(), ids[kept])
        elif columns != self.columns:
            # Chunks that do not live are zeros.
            parts = {name: whole_columns(part, self.columns[1]) for name, part in parts.items()}
            columns = self.columns
        if len(kept) and columns[1]:
            held = {name: part[kept] for name, part in parts.items()}
            self.inner.load(RowBlock(rows[kept].long(), columns, held))
        return numbers

    def reset(self) -> None:
        """Takes the rows of all ids; what is counted of ids without a row stays."""
        counter = self.store.ids.counter(self.table)
        self.store.ids.clear(self.table)
        if self.chunk is not None:
            self.store.chunks.clear(self.table)
        if counter.numel():
            self.store.ids.load_counter(self.table, counter)

    def clear(self) -> None:
        """The same: no id has a row."""
        self.reset()

    def snapshot(self, holds: Holds, copy: bool) -> TableShard:
        """The ids and rows as they are now; without `copy` it is itself."""
        if not copy:
            return self
        return HeldDynamicShard(self, self._listed(), self.inner.snapshot(holds, copy))

    def _listed(self) -> IdBlock:
        ids = self.store.ids
        blocks = list(ids.scan(self.table, max(1, ids.statistics(self.table).ids)))
        return blocks[0] if blocks else IdBlock(*(torch.empty(0, dtype=kind) for kind in _KINDS))


_CHUNK_PARTS = {UTILITY: PartSpec(torch.bfloat16, "element"), GROWTH: PartSpec(torch.bfloat16, "row")}
_ID_BYTES = 64
"""Of an id without a chunk, about."""
_KINDS = (torch.int64, torch.int32, torch.int64, torch.float32, torch.int64)


@dataclass(frozen=True)
class HeldDynamicShard(SavedShard[DynamicShard]):
    """A dynamic table as it was when it was held."""

    listed: IdBlock
    inner: TableShard

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """Ids with their rows as they were."""
        return blocks_by_id(self.listed, self.inner, max_bytes)


def blocks_by_id(listed: IdBlock, inner: TableShard, max_bytes: int) -> Iterator[RowBlock]:
    """The rows of an inner store under the ids that have them, block by block; last those without a chunk."""
    positions = torch.full((inner.rows[1],), -1, dtype=torch.int32)
    positions[listed.rows.long()] = torch.arange(len(listed.rows), dtype=torch.int32)
    without_chunk = torch.full((len(listed.ids),), inner.chunk is not None)
    for block in inner.blocks(max_bytes):
        rows = block.ids
        here = positions[rows.start : rows.stop] if isinstance(rows, range) else positions[rows]
        kept = (here >= 0).nonzero().view(-1)
        if not len(kept):
            continue
        kept = kept[here[kept].argsort()]
        known = here[kept].long()
        parts: dict[str, Tensor] = {name: part[kept] for name, part in block.parts.items()}
        without_chunk[known] = False
        yield RowBlock(listed.ids[known], block.columns, parts | _id_parts(listed, known))
    specs = {**inner.specs, **_CHUNK_PARTS}
    for known in without_chunk.nonzero().view(-1).split(max(1, max_bytes // _ID_BYTES)):
        if len(known):
            nothing = {
                name: torch.zeros(len(known), *((0,) if spec.per == "element" else ()), dtype=spec.dtype)
                for name, spec in specs.items()
            }
            yield RowBlock(listed.ids[known], (0, 0), nothing | _id_parts(listed, known))


def whole_columns(part: Tensor, dim: int) -> Tensor:
    """Live columns of rows with zeros behind them; one number a row as it is."""
    return part if part.dim() == 1 else torch.nn.functional.pad(part, (0, dim - part.shape[1]))


def _id_parts(listed: IdBlock, known: Tensor) -> dict[str, Tensor]:
    return {"last": listed.last[known], "score": listed.scores[known], "time": listed.times[known]}


def _read(block: RowBlock, name: str, spec: PartSpec) -> Tensor:
    """A part of a block, all of it; there is nothing to read where no column lives."""
    part, rows = block.parts[name], len(block.ids)
    if spec.per == "row":
        values: Tensor = part[0:rows]
        return values
    if block.columns[1] == 0:
        return torch.zeros(rows, 0, dtype=spec.dtype)
    columns: Tensor = part[0:rows, :] if name == UTILITY else part[0:rows, 0 : block.columns[1]]
    return columns
