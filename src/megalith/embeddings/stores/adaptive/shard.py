"""`AdaptiveShard`: the live chunks of a table as checkpoints see them.

Rows travel in blocks of those with equally many chunks, which are the first ones: a block has the columns
that live, and beside them `utility`, a number for each chunk, and `growth`, one for each row. What no block
brings does not live: it reads as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.embeddings.row_block import PART_NAMES, WEIGHT, PartSpec, Rectangle, RowBlock, take
from megalith.embeddings.stores.adaptive.live_rows import (
    WholeRows,
    lay_over,
    live_chunks,
    row_blocks,
    states_of,
)
from megalith.embeddings.stores.adaptive.tiers.tiered_chunks import TieredChunks
from megalith.embeddings.stores.row_files import Holds, PoolTable
from megalith.embeddings.stores.saved_shard import SavedShard
from megalith.ops.chunks.blocks import ChunkedBlock, ExpandedRows
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.stores.start_values import StartValues

_IDS = 1 << 20


@dataclass(frozen=True)
class AdaptiveShard:
    """Some rows of a table, of which the live chunks are in a pool."""

    pool: ChunkedRows | TieredChunks
    table: int
    """Its number in the pool."""
    writes: bool = True
    """Whether a checkpoint takes the rows from here; of copies exactly one process writes."""

    @property
    def start(self) -> StartValues:
        """How chunks begin."""
        return self.pool.tables[self.table].start

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""
        return self.start.first_row, self.start.first_row + self.pool.tables[self.table].rows

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""
        return self.start.first_column, self.start.first_column + self.start.dim

    @property
    def specs(self) -> dict[str, PartSpec]:
        """The parts that every store keeps."""
        shape = self.pool.shape
        specs = {WEIGHT: PartSpec(shape.dtype, "element")}
        for name, state in zip(PART_NAMES[1:], (shape.first_state, shape.second_state), strict=True):
            if state != "none":
                specs[name] = PartSpec(torch.float32, "element" if state == "full" else "row")
        return specs

    @property
    def sparse(self) -> bool:
        """Rows without a chunk are in no block."""
        return True

    @property
    def chunk(self) -> int:
        """Columns of a chunk."""
        return self.pool.shape.width

    @property
    def touched(self) -> None:
        """Rows get and lose chunks that no batch touches: they are compared by content."""
        return

    @property
    def files(self) -> PoolTable | None:
        """Its rows are in no files."""
        return None

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """The rows that have chunks, those with equally many together."""
        shape = self.pool.shape
        state = sum({"none": 0, "row": 1, "full": shape.dim}[each] for each in states_of(shape))
        step = max(1, max_bytes // (shape.dim * shape.dtype.itemsize + 4 * state + 2 * shape.chunks + 10))
        for block in self.pool.blocks(self.table, step):
            yield from row_blocks(block, shape, self.rows[0])

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block: all chunks that the block has columns of live then."""
        taken = take(block, Rectangle(self.rows, self.columns), self.specs)
        if taken is None:
            return 0
        ids = taken.rows
        if isinstance(ids, slice):
            ids = torch.arange(ids.start, ids.stop)
        brought = self._held(ids)
        lay_over(brought, taken, block, self.rows[0], self.pool.shape)
        kept = ids != self.pool.tables[self.table].padding
        if bool(kept.any()):
            self.pool.load(self.table, brought.block(kept, self.pool.shape))
        return taken.numbers

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """The parts of some rows with all their columns, copied; zeros where a chunk does not live."""
        held = zip(PART_NAMES, self._held(ids - self.rows[0]).parts, strict=True)
        return {name: part for name, part in held if name in self.specs}

    def reset(self) -> None:
        """No chunk lives: each row begins with its start value when it is next trained."""
        ranked = self.pool.ranked_rows[self.table]
        while len(ids := self.pool.ids(self.table, count=_IDS)) and ids[0] < ranked:
            # What competes for nothing stays.
            self.pool.rewrite(self.table, ids[ids < ranked], torch.zeros_like(ids[ids < ranked]))
        self.pool.compact()

    def clear(self) -> None:
        """The same: what does not live reads as zeros."""
        self.reset()

    def snapshot(self, holds: Holds, copy: bool) -> AdaptiveShard | CopiedShard:
        """A copy of the live chunks, or itself where nothing changes it meanwhile."""
        del holds
        return CopiedShard(self, self.pool.held_blocks(self.table)) if copy else self

    def _held(self, ids: Tensor) -> WholeRows:
        """Rows as they are now with all their columns."""
        shape, count = self.pool.shape, len(ids)
        numbers = {"none": (0,), "row": (count,), "full": (count, shape.dim)}
        first, second = (torch.zeros(numbers[state]) for state in states_of(shape))
        rows = WholeRows(
            ids,
            live_chunks(self.pool.masks(self.table, ids), shape),
            torch.zeros(count, dtype=torch.bfloat16),
            torch.zeros(count, shape.chunks, dtype=torch.bfloat16),
            ExpandedRows(torch.zeros(count, shape.dim, dtype=shape.dtype), first, second),
        )
        present = rows.live.nonzero().view(-1)
        if len(present):
            found = self.pool.read(self.table, ids[present])
            for ours, theirs in zip(rows.parts, found.expanded(shape), strict=True):
                if ours.numel():
                    ours[present] = theirs
            rows.growth[present] = found.growth
            utilities = torch.zeros(len(present), shape.chunks, dtype=torch.bfloat16)
            utilities[torch.arange(shape.chunks) < rows.live[present, None]] = found.utilities
            rows.utilities[present] = utilities
        return rows


@dataclass(frozen=True)
class CopiedShard(SavedShard[AdaptiveShard]):
    """The live chunks of a table as they were, for a checkpoint that is written while training goes on."""

    copies: Iterable[ChunkedBlock]

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """The rows that had chunks."""
        del max_bytes
        for block in self.copies:
            yield from row_blocks(block, self.live.pool.shape, self.rows[0])
