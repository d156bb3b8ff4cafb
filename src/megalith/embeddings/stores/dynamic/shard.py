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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import PartSpec, RowBlock
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.stores.saved_shard import SavedShard
from megalith.embeddings.table_state import TableShard
from megalith.ops.ids.changes import EvictedIds, IdBlock
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
    chunk: None = None

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
        numbers, evicted = self.load_ids(block)
        self.store.tell_evicted(evicted, self.store.ids.batch)
        return numbers

    def load_ids(self, block: RowBlock) -> tuple[int, EvictedIds]:
        """The same, and the ids that left for others or got no row."""
        ids = torch.as_tensor(block.ids)
        numbers = len(ids) * (self.columns[1] + len(ID_PARTS))
        if not bool(self.store.owns(ids).any()):
            # Not a byte of the rows that others hold is read.
            return numbers, EvictedIds(*(torch.empty(0, dtype=torch.int64),) * 4)
        if tuple(block.columns) != self.columns:
            raise CheckpointError(
                f"Columns {block.columns} of dynamic table '{self.store.names[self.table]}' are "
                "not whole rows; save it from a table that is not cut by columns."
            )
        parts = {
            name: _read(block.parts[name], spec, len(ids), self.columns) for name, spec in self.specs.items()
        }
        scores = parts.pop("score") * self.store.score_factors[self.table]
        known = IdBlock(ids, torch.empty(0), parts.pop("last"), scores, parts.pop("time"))
        rows, evicted = self.store.ids.load(self.table, known._replace(rows=torch.empty_like(ids)))
        kept = (rows >= 0).nonzero().view(-1)
        if len(kept):
            kept = kept[rows[kept].argsort()]
            self.inner.load(
                RowBlock(rows[kept].long(), self.columns, {name: part[kept] for name, part in parts.items()})
            )
        return numbers, evicted

    def reset(self) -> None:
        """Takes the rows of all ids; what is counted of ids without a row stays."""
        counter = self.store.ids.counter(self.table)
        self.store.ids.clear(self.table)
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
    """The rows of an inner store under the ids that have them, block by block."""
    positions = torch.full((inner.rows[1],), -1, dtype=torch.int32)
    positions[listed.rows.long()] = torch.arange(len(listed.rows), dtype=torch.int32)
    for block in inner.blocks(max_bytes):
        rows = block.ids
        here = positions[rows.start : rows.stop] if isinstance(rows, range) else positions[rows]
        kept = (here >= 0).nonzero().view(-1)
        if not len(kept):
            continue
        kept = kept[here[kept].argsort()]
        known = here[kept].long()
        parts: dict[str, Tensor] = {name: part[kept] for name, part in block.parts.items()}
        parts |= {"last": listed.last[known], "score": listed.scores[known], "time": listed.times[known]}
        yield RowBlock(listed.ids[known], block.columns, parts)


def _read(part: Any, spec: PartSpec, rows: int, columns: tuple[int, int]) -> Tensor:
    values: Tensor = part[0:rows] if spec.per == "row" else part[0:rows, columns[0] : columns[1]]
    return values
