"""`AdaptiveStore`: tables of one shape whose rows are cut into chunks, of which only live ones are stored.

What `resolve` finds ahead is a guess: rows begin when a batch `arrive`s, in the order of batches, and chunks
are pruned and grown between two steps by the `AdaptiveBudget` that the stores of a model share.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.store_spec import AdaptiveSpec
from megalith.embeddings.row_block import WEIGHT
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.mapped import (
    CANDIDATES,
    MappedTable,
    SharedRows,
    candidate_table,
    candidate_units,
    drop_rows,
)
from megalith.embeddings.stores.adaptive.shard import AdaptiveShard
from megalith.embeddings.stores.adaptive.tiers.tiered_chunks import PrefetchedRows, TieredChunks
from megalith.embeddings.stores.base import RowCache, StoreBytes, StoredTable, TierCounts
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import PADDING_SLOT, ChunkedRows, ResolvedSlots
from megalith.ops.chunks.ranking import Ranking
from megalith.ops.chunks.sketch import CandidateSketch
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.native_tables import allocate_zeros
from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.tiered_rows import PooledTable

_FOUR_BYTE_SLOTS = 8 << 30
"""Slots of a pool of at most so many bytes are units of four: larger ones waste more behind a record."""
_ANY_ROOM = 1 << 62


def chunk_shape(table: StoredTable, spec: AdaptiveSpec, widest: int) -> ChunkShape:
    """How the rows of a table are cut; `widest` are the columns of a chunk where its spec does not say."""
    dim, dtype, optimizer = table.spec.dim, getattr(torch, table.spec.dtype), table.optimizer
    states = optimizer.first_state, optimizer.second_state
    if spec.chunk is not None:
        return ChunkShape(dim, spec.chunk, dtype, *states)
    whole = ChunkShape(dim, dim, dtype, *states)
    widths = [width for width in range(1, dim + 1) if whole.is_width(width)]
    narrow = [width for width in widths if width <= widest]
    return ChunkShape(dim, max(narrow, default=widths[0]), dtype, *states)


@dataclass
class _HeldBatch:
    """A batch between `resolve` and `release`."""

    lookups: Tensor
    values: Tensor
    trains: bool
    moment: tuple[int, int]
    """Generation of the pool and rows begun when it was resolved: its slots are right while both stay."""
    found: ResolvedSlots
    ranked: int
    """Changes of what there is, not of where it lies, when it was last resolved."""
    ahead: PrefetchedRows | None = None
    """Of rows on disk, what was read when it was resolved."""
    norms: Tensor | None = None
    """Of the gradients of ids without a record."""
    weight: float = 0.0


class AdaptiveStore:
    """Some tables of one shape in a pool of chunked rows."""

    ids_are_slots = False

    def __init__(
        self,
        tables: Sequence[StoredTable],
        shape: ChunkShape,
        budget: AdaptiveBudget,
        seed: int,
        mapped: Sequence[MappedTable] = (),
        memory: TieredMemory | None = None,
        parents: Sequence[Path] = (),
    ) -> None:
        """`mapped` says of each table how a map of ids gives out its rows; none: rows are ids. `memory` is
        for rows that may lie on disk, in a folder that goes with the store, and `parents` once empty."""
        self.tables, self.shape, self.budget = tuple(tables), shape, budget
        maps: list[MappedTable | None] = [*mapped] or [None] * len(tables)
        pooled = [
            PooledTable(
                table.spec.rows,
                table.window.start_values(seed) if own is None else own.start,
                _padding(table),
            )
            for table, own in zip(tables, maps, strict=True)
        ]
        self.pool = ChunkedRows(pooled, shape, _capacity(shape, tables, budget.schedule.peak))
        self.pools = (self.pool,) * len(tables)
        self.tiers: TieredChunks | None = None
        if memory is not None:
            outlines = ChunkShape(shape.chunks, 1)
            capacity = _capacity(outlines, tables, budget.schedule.peak)
            self.tiers = TieredChunks(self.pool, memory, capacity, parents)
        self.stored: ChunkedRows | TieredChunks = self.tiers or self.pool
        """All rows, wherever they lie."""
        for number, own in enumerate(mapped):
            # Touched row by row, as ids come.
            raw_ids = allocate_zeros(tables[number].spec.rows, 1, torch.int64).view(-1)
            self.stored.map_rows(number, raw_ids, own.rows)
        self._shared = SharedRows(self.pool, maps)
        self.sketch = CandidateSketch(
            [
                candidate_table(budget.candidates(table.window.table.name), table.window, own)
                for table, own in zip(tables, maps, strict=True)
            ],
            self.pool.raw_ids,
        )
        """What rows without a chunk would be worth."""
        self.ranking = Ranking(
            *(self.pool, self.sketch, budget.policy.ranking(), [False] * len(tables)),
            outlines=self.tiers.outlines if self.tiers else None,
        )
        self.numbers = torch.tensor([budget.numbers[table.window.table.name] for table in tables])
        """Of its tables, among all adaptive ones."""
        none = torch.empty(0)
        weight = torch.empty(0, shape.dim, dtype=shape.dtype)
        self.rows = tuple(PhysicalRows(weight, none, none, ids) for ids in self.pool.raw_ids)
        self._rates = rates_by_live_chunks(shape.chunks, budget.policy.rate)
        self._tickets = itertools.count(1)
        self._held: dict[int, _HeldBatch] = {}
        self._begun = self._ranked = self._last = self._lookups = self._misses = 0
        budget.join(self)

    def padding(self, table: int) -> int:
        """The slot that reads as zeros and does not count."""
        return -1 if self.tables[table].spec.padding_index is None else PADDING_SLOT

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Rows that a coming batch uses leave last."""
        if self.tiers and self.tiers.memory.policy == "lookahead":
            self.tiers.uses.note(self._last + ahead, lookups, values)

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """Slots as they are now; nothing changes. Rows on disk are read."""
        del wait
        # Before the slots are found: what moves them in between is noticed later.
        moment, ranked = self._moment(), self._ranked
        found = self.pool.resolve(lookups, values, trains=trains)
        self._last = ticket = next(self._tickets)
        held = _HeldBatch(lookups, values, trains, moment, found, ranked)
        if self.tiers:
            self.tiers.uses.note(ticket, lookups, values)
            held.ahead = self.tiers.prefetch(lookups, values)
        self._held[ticket] = held
        return found.slots, ticket

    def arrive(self, ticket: int) -> Tensor | None:
        """Begins rows that a training batch lacks, if there is room; slots where they differ by now."""
        held = self._held[ticket]
        chunks = self.budget.chunks_of_new_rows(self.shape.chunks) if held.trains else 0
        if self.tiers:
            self._bring(ticket, held, chunks)
        if held.moment == self._moment() and not (chunks and len(held.found.absent)):
            return None
        return self._resolve_again(held, chunks)

    def current(self, ticket: int) -> Tensor | None:
        """Slots where records have moved since."""
        held = self._held[ticket]
        # Rows that other batches began meanwhile were not there when this one was read.
        if held.moment[0] == self._moment()[0]:
            return None
        before, ranked = held.found, held.ranked
        slots = self._resolve_again(held, 0)
        if self.tiers is None or ranked != self._ranked:
            return slots
        # Only tiers moved rows: ids that had no record are still told apart by their numbers of then.
        slots = torch.where(before.slots < 0, before.slots, slots)
        held.found = before._replace(slots=slots)
        return slots

    def _bring(self, ticket: int, held: _HeldBatch, chunks: int) -> None:
        """Brings the rows of a batch into memory, with room for those that may begin."""
        assert self.tiers is not None
        self.tiers.uses.pin(ticket, held.lookups, held.values)
        assert held.ahead is not None
        room = len(held.found.absent) * self.pool.shape.row_bytes(chunks) if chunks else 0
        self._misses += self.tiers.bring(held.lookups, held.values, held.ahead, trains=held.trains, room=room)
        self._lookups += len(held.values)
        held.ahead = None
        waiting = [other.ahead.change for other in self._held.values() if other.ahead is not None]
        self.tiers.forget_changes(min(waiting, default=self.tiers.last_change))

    def apply(self, scales: Tensor, key: int) -> None:
        """Prunes and grows as a ranking has it."""
        self._ranked += 1
        self.ranking.apply(scales, key)
        if self.tiers:
            self.tiers.after_ranking(self.ranking.outline_changes())
        self.stored.compact()

    def _resolve_again(self, held: _HeldBatch, chunks: int) -> Tensor:
        found = self.pool.resolve(
            held.lookups, held.values, trains=held.trains, first_chunks=chunks, room=_ANY_ROOM
        )
        self._begun += _ANY_ROOM - found.room
        held.found, held.moment, held.ranked = found, self._moment(), self._ranked
        return found.slots

    def _moment(self) -> tuple[int, int]:
        return self.pool.generation, self._begun

    def chunk_steps(self, ticket: int, step: int) -> Sequence[ChunkStep]:
        """Weights differ from table to table; absent rows are numbered over all of them."""
        held, predictions = self._held[ticket], self.budget.predictions
        held.weight, held.norms = self.budget.utility_weight(step), torch.zeros(len(held.found.absent))
        return [
            ChunkStep(
                predictions.weight(number, held.weight),
                absent_norms=held.norms,
                sums=predictions.sums[number],
                norm_scale=predictions.tables[number].norm_scale,
                product_scale=predictions.tables[number].product_scale,
                rates=self._rates,
                unscored=slot,
            )
            for number, slot in zip(self.numbers.tolist(), self._shared.slots(), strict=True)
        ]

    def updated(self, ticket: int) -> None:
        """Remembers how much rows without a chunk were missed."""
        held = self._held[ticket]
        if held.norms is not None and len(held.norms):
            tables, predictions = self.numbers[held.found.absent[:, 0]], self.budget.predictions
            predictions.add_absent(tables, held.norms)
            relative = torch.tensor([table.relative for table in predictions.tables])
            self.sketch.add(held.found.absent, held.norms / relative[tables], held.weight)
            held.norms = None

    def release(self, ticket: int) -> None:
        """Records stay where they are until the next ranking."""
        self._held.pop(ticket, None)
        if self.tiers:
            self.tiers.uses.release(ticket)

    def begin_rows(self, table: int, rows: Tensor, ids: Tensor) -> None:
        """Ids get rows of a mapped table, which have no chunk; int64 each."""
        raw_ids = self.pool.raw_ids[table]
        assert raw_ids is not None
        raw_ids[rows] = ids

    def drop_rows(self, table: int, rows: Tensor, ids: Tensor) -> None:
        """Ids lose rows of a mapped table: chunks, utilities and what the sketch has go at once."""
        self._ranked += drop_rows(self.stored, self.sketch, table, rows, ids)

    def shared_slot(self, table: int) -> int:
        """Where the row of a mapped table lies that ids without one share."""
        return self._shared.slots()[table]

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """The live chunks of a table."""
        return AdaptiveShard(self.stored, table, writes)

    def states(self, table: int) -> Mapping[str, TableState]:
        """Its part of the sketch, by units of rows."""
        units, described = self.sketch.units(table), self.sketch.tables[table]
        shard = DenseShard(described.units[0], 0, {WEIGHT: units})
        whole = self.budget.candidates(self.tables[table].window.table.name)
        return {CANDIDATES: candidate_units(whole, (shard,), is_mapped=False)}

    def bytes(self) -> StoreBytes:
        """All that the pool and its part of the sketch take."""
        found = self.stored.statistics().bytes
        return StoreBytes(
            weights=found.weights,
            state=found.state,
            index=found.index,
            bookkeeping=found.bookkeeping,
            utility=found.utility,
            sketch=self.sketch.bytes(),
            free=found.free,
            disk=self.tiers.files.disk_bytes() if self.tiers else 0,
        )

    def used_bytes(self) -> int:
        """What all rows that compete count as, wherever they lie."""
        found = self.stored.statistics()
        used = sum(count * size for count, size in zip(found.records, found.row_bytes, strict=True))
        return used - sum(self._shared.count()) * found.row_bytes[-1]

    def num_rows(self) -> list[int]:
        """By table, the rows with a record that compete."""
        rows = self.stored.statistics().rows
        return [count - shared for count, shared in zip(rows, self._shared.count(), strict=True)]

    def counts(self) -> TierCounts:
        """What was read and written where rows lie on disk; hits are lookups without a read."""
        if not self.tiers:
            return TierCounts()
        found = self.tiers.files.counts()
        return found._replace(lookups=self._lookups, hits=self._lookups - self._misses)

    def caches(self) -> Sequence[RowCache]:
        """None."""
        return ()


def rates_by_live_chunks(chunks: int, power: float) -> Tensor | None:
    """What learning rates are multiplied with, by live chunks: 1 for rows that are whole.

    >>> rates_by_live_chunks(4, 0.5).tolist()[1:]
    [2.0, 1.4142135381698608, 1.154700517654419, 1.0]
    """
    if power == 0:
        return None
    return torch.tensor([1.0, *((chunks / live) ** power for live in range(1, chunks + 1))])


def _padding(table: StoredTable) -> int:
    return -1 if table.spec.padding_index is None else table.spec.padding_index


def _capacity(shape: ChunkShape, tables: Sequence[StoredTable], peak: int) -> int:
    """Addresses for all rows whole, or for twice of what may live where that needs longer slots."""
    numbers = {"none": 0, "row": 1, "full": shape.dim}
    state = 4 * (numbers[shape.first_state] + numbers[shape.second_state])
    header = 12 + 2 * shape.chunks + shape.chunks // 8
    row_bytes = header + state + shape.dim * shape.dtype.itemsize
    # An extent of each length is partly free, and a 64th of each is too short for one more record.
    spare = 2 * (shape.chunks + 1) * max(64 << 10, 128 * row_bytes)
    whole = sum(table.spec.rows for table in tables) * row_bytes * 65 // 64 + spare
    return min(whole, max(_FOUR_BYTE_SLOTS - (1 << 20) - spare, 2 * peak + spare))
