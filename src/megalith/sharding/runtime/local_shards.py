"""`LocalShards`: the rectangles of tables that one worker holds, looked up and updated for all ranks.

The lookup (`lookup.py`) calls it between the two exchanges, on all workers alike. It owns the rows, as tables
of `EmbeddingCollection`s, the sums of the node, and the optimizer of rows whose columns are cut.

Pooled tables give a row for every sample. Tables of sequences give a vector, or some columns of it, for every
id, whichever sample it belongs to: the ids of a piece are looked up in one go, whoever sent them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.embeddings.check import Indices
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.row_block import part_specs
from megalith.embeddings.shared_rows import SharedRowGradient, SharedRowGradients
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.mapped import CANDIDATES, candidate_units
from megalith.embeddings.stores.base import RowCache, StoreBytes, TierCounts
from megalith.embeddings.stores.dynamic.shard import ID_PARTS
from megalith.embeddings.stores.dynamic.side_states import side_states
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.table_state import TableShard, TableState
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import LocalShard
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.runtime.column_sharded_optimizer import ColumnShardedOptimizer, has_column_sharded_rows
from megalith.sharding.runtime.input_dist.jagged_ids import ReceivedIds
from megalith.sharding.runtime.node_reduce import NodeReduce
from megalith.sharding.runtime.output_dist import WorkerVectors
from megalith.sharding.runtime.unknown_rows import UnknownRows


class ResolvedShards(NamedTuple):
    """The rows that a worker looks up for a batch, in memory until they are released."""

    pooled: ResolvedIds | None
    """None where the worker holds no such table."""
    sequences: ResolvedIds | None

    def release(self) -> None:
        """Lets the rows leave."""
        for resolved in self:
            if resolved is not None:
                resolved.release()


class LocalShards:
    """What one worker holds, for the samples of all ranks."""

    def __init__(
        self,
        layout: ExchangeLayout,
        plan: ShardingPlan,
        rank: int,
        comm: CommContext | None,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        memory: TieredMemory | None,
        budget: AdaptiveBudget | None,
        unknown: UnknownRows,
        *,
        stochastic_rounding: bool,
    ) -> None:
        worker = layout.workers[rank]
        self._unknown = unknown
        self._direct_width = worker.direct_width
        # Streams that only sequences read stand behind those that are pooled.
        self._num_streams = worker.num_pooled_streams
        self._has_more = self._num_streams < len(worker.streams)
        streams = {stream: number for number, stream in enumerate(worker.streams)}
        self._piece_streams = [streams[piece.stream] for piece in worker.pieces]
        self._node = NodeReduce.of(layout, rank, comm)
        pooled = [(shard, shard.spec()) for shard in worker.pooled_shards]
        # In a table of sequences every piece is a feature.
        numbers = itertools.count()
        sequences = []
        for shard in worker.sequence_shards:
            features = tuple(str(next(numbers)) for _ in shard.streams)
            sequences.append((shard, shard.spec().model_copy(update={"features": features})))
        common = (budget, unknown, plan, rank, comm, optimizers, seed, stochastic_rounding)
        own = _worker_memory(memory, rank, pooled, sequences)
        self._pooled = _ShardTables(pooled, layout.pooled_tables, own[0], *common)
        tables = tuple(dict.fromkeys(table for table, _ in layout.sequences))
        self._sequences = _ShardTables(sequences, tables, own[1], *common)

    def expect(self, received: ReceivedIds, ahead: int) -> None:
        """Says which ids come, `ahead` batches after the last one that was resolved."""
        for tables, lookup in self._lookups(received):
            tables.expect(lookup, ahead)

    def resolve(self, received: ReceivedIds, *, trains: bool, wait: bool) -> ResolvedShards:
        """Brings the rows of all ranks' samples into memory."""
        resolved = [
            tables.resolve(lookup, trains=trains, wait=wait) for tables, lookup in self._lookups(received)
        ]
        return ResolvedShards(*resolved)

    def tell_times(self, received: ReceivedIds, rows: ResolvedShards) -> None:
        """Says when the samples of a batch happened, before its rows are read: ids may expire by it."""
        times = received.times
        if self._pooled.collection is not None and rows.pooled is not None:
            self._pooled.collection.stores.tell_time(times, rows.pooled)
        if self._sequences.collection is None:
            return
        now, of_ids = None, None
        if times is not None:
            now = int(times.max()) if len(times) else None
            bags = received.offsets.diff().view(-1, len(times)) if len(times) else None
            each = [] if bags is None else [times.repeat_interleave(bags[s]) for s in self._piece_streams]
            of_ids = torch.cat([times[:0], *each])
        self._sequences.collection.stores.tell_times(now, of_ids)

    def read_pooled(self, received: ReceivedIds, rows: ResolvedShards) -> WorkerVectors:
        """Pooled rows of all ranks' samples; what the node adds up is added up."""
        collection = self._pooled.collection
        if collection is None or rows.pooled is None:
            direct = torch.empty(sum(received.batches), 0)
            node = None if self._node is None else self._node.reduce(direct, received.batches)
            return WorkerVectors(direct, node)
        pooled, *_ = collection.read(rows.pooled)
        if self._node is None:
            return WorkerVectors(pooled, None)
        parts = pooled[:, self._direct_width :]
        return WorkerVectors(pooled[:, : self._direct_width], self._node.reduce(parts, received.batches))

    def pooled_gradient(self, received: ReceivedIds, gradients: WorkerVectors) -> Tensor:
        """That of all columns of this worker, those of its node's sums included, [samples, columns]."""
        if self._node is None:
            return gradients.direct
        assert gradients.node is not None
        return torch.cat(
            [gradients.direct, self._node.reduce_backward(gradients.node, received.batches)], dim=1
        )

    def sample_weight_gradient(self, rows: ResolvedShards, gradient: Tensor) -> Tensor:
        """Of the weights of all ids that are pooled here; before the update, which changes the rows."""
        if self._pooled.collection is None or rows.pooled is None:
            return torch.empty(0)
        return self._pooled.collection.sample_weight_gradient(rows.pooled, gradient)

    def update_pooled(self, rows: ResolvedShards, gradient: Tensor, num_steps: int, lr_factor: float) -> None:
        """Step number `num_steps` on every row that a sample of any rank touched."""
        self._pooled.update(rows.pooled, gradient, (), num_steps, lr_factor)

    def read_sequences(self, rows: ResolvedShards) -> list[Tensor]:
        """By piece: [ids of its stream, columns], rank after rank."""
        if self._sequences.collection is None or rows.sequences is None:
            return []
        _, *vectors = self._sequences.collection.read(rows.sequences)
        return vectors

    def update_sequences(
        self, rows: ResolvedShards, gradients: Sequence[Tensor | None], num_steps: int, lr_factor: float
    ) -> None:
        """Step number `num_steps` on the rows of the pieces that have a gradient; all workers call it."""
        self._sequences.update(rows.sequences, None, gradients, num_steps, lr_factor)

    def update_unknown(self) -> None:
        """The same step on the rows that ids of dynamic tables without one share; all workers call it."""
        total = self._unknown.total()
        for tables in (self._pooled, self._sequences):
            tables.update_unknown(total)

    def table_states(self, table: TableSpec, optimizer: RowOptimizer) -> dict[str, TableState]:
        """A table as a checkpoint sees it, and other state of its store: this worker holds some rectangles of
        it, or none."""
        return self._holding(table).table_states(table, optimizer)

    def collections(self) -> list[EmbeddingCollection]:
        """Those of this worker."""
        each = self._pooled.collection, self._sequences.collection
        return [collection for collection in each if collection is not None]

    def parts_of(self, table: TableSpec) -> list[tuple[EmbeddingCollection, str]]:
        """The rectangles of a table on this worker: their collection, and their name there."""
        return self._holding(table).parts_of(table)

    def _holding(self, table: TableSpec) -> _ShardTables:
        return self._sequences if table.pooling == "none" else self._pooled

    def counts(self) -> TierCounts:
        """What the tiers of this worker's stores did so far."""
        return self._pooled.counts().plus(self._sequences.counts())

    def bytes(self) -> StoreBytes:
        """What this worker's stores take."""
        return self._pooled.bytes().plus(self._sequences.bytes())

    def caches(self) -> list[RowCache]:
        """The caches of this worker's stores."""
        return [*self._pooled.caches(), *self._sequences.caches()]

    def _lookups(self, received: ReceivedIds) -> list[tuple[_ShardTables, Indices]]:
        return [
            (self._pooled, self._pooled_lookup(received)),
            (self._sequences, self._sequence_lookup(received)),
        ]

    def _pooled_lookup(self, received: ReceivedIds) -> Indices:
        """What is pooled of all that came."""
        values, offsets, weights = received.values, received.offsets, received.sample_weights
        if self._has_more:
            offsets = offsets[: self._num_streams * sum(received.batches) + 1]
            end = int(offsets[-1])
            values, weights = values[:end], None if weights is None else weights[:end]
        return values, offsets, weights

    def _sequence_lookup(self, received: ReceivedIds) -> Indices:
        """The ids of the pieces, one bag for each."""
        total, streams = sum(received.batches), self._piece_streams
        ends = received.offsets[::total].tolist() if total else [0] * (max(streams, default=0) + 2)
        ids = [received.values[ends[stream] : ends[stream + 1]] for stream in streams]
        offsets = torch.tensor([0, *map(len, ids)]).cumsum(0)
        return torch.cat([received.values[:0], *ids]), offsets, None


class _ShardTables:
    """Rectangles as tables of one collection, and the optimizer of those whose columns are cut."""

    def __init__(
        self,
        shards: Sequence[tuple[LocalShard, TableSpec]],
        tables: Collection[TableSpec],
        memory: TieredMemory | None,
        budget: AdaptiveBudget | None,
        unknown: UnknownRows,
        plan: ShardingPlan,
        rank: int,
        comm: CommContext | None,
        optimizers: Mapping[str, RowOptimizer],
        seed: int,
        stochastic_rounding: bool,
    ) -> None:
        self._shards, self._budget = [shard for shard, _ in shards], budget
        self._unknown, self._shared = unknown, list[SharedRowGradient]()
        self.collection: EmbeddingCollection | None = None
        """None on a worker that holds nothing."""
        if shards:
            self.collection = EmbeddingCollection(
                [spec for _, spec in shards],
                seed=seed,
                table_optimizers={shard.name: optimizers[shard.table.name] for shard in self._shards},
                stochastic_rounding=stochastic_rounding,
                windows={
                    shard.name: TableWindow(shard.table, shard.shard.rows, shard.shard.columns)
                    for shard in self._shards
                },
                memory=memory,
                adaptive=budget,
            )
        self._gradients: SharedRowGradients | None = None
        if self.collection is not None and self.collection.stores.dynamic:
            self._gradients = SharedRowGradients(self.collection)
        self._column_sharded: ColumnShardedOptimizer | None = None
        names = {table.name for table in tables}
        own = plan.model_copy(update={"placements": tuple(p for p in plan.placements if p.table in names)})
        if has_column_sharded_rows(own, optimizers):
            # Also on a worker without such a shard: all of them take part in the exchange.
            self._column_sharded = ColumnShardedOptimizer(self.collection, self._shards, plan, rank, comm)

    def update(
        self,
        rows: ResolvedIds | None,
        pooled: Tensor | None,
        sequences: Sequence[Tensor | None],
        num_steps: int,
        lr_factor: float,
    ) -> None:
        if self.collection is not None and rows is not None:
            self.collection.num_steps, self.collection.lr_factor = num_steps - 1, lr_factor
            descriptors = None if self._column_sharded is None else self._column_sharded.descriptors
            if self._gradients is not None:
                self._shared = self._gradients.take(rows, pooled, sequences)
            for shared in self._shared:
                self._unknown.add(self._shards[shared.table].table.name, shared.gradient, shared.num_values)
            self.collection.update(rows, pooled, sequences, descriptors)
        if self._column_sharded is not None:
            self._column_sharded.update(rows, pooled, sequences)

    def expect(self, lookup: Indices, ahead: int) -> None:
        if self.collection is not None:
            self.collection.expect(lookup, ahead)

    def resolve(self, lookup: Indices, *, trains: bool, wait: bool) -> ResolvedIds | None:
        return None if self.collection is None else self.collection.resolve(lookup, trains=trains, wait=wait)

    def counts(self) -> TierCounts:
        return TierCounts() if self.collection is None else self.collection.stores.counts()

    def bytes(self) -> StoreBytes:
        return StoreBytes() if self.collection is None else self.collection.stores.bytes()

    def caches(self) -> list[RowCache]:
        return [] if self.collection is None else self.collection.caches()

    def update_unknown(self, total: Mapping[str, Tensor]) -> None:
        """Takes the step on shared rows, given the gradients of all workers by table."""
        slots, gradients = dict[int, int](), list[Tensor]()
        for shared in self._shared:
            table = self._shards[shared.table].table.name
            if table in total:
                slots[shared.table] = shared.slot
                gradients.append(total[table])
        self._shared = []
        if slots and self._gradients is not None:
            self._gradients.step(slots, gradients)

    def parts_of(self, table: TableSpec) -> list[tuple[EmbeddingCollection, str]]:
        if self.collection is None:
            return []
        return [(self.collection, shard.name) for shard in self._shards if shard.table.name == table.name]

    def table_states(self, table: TableSpec, optimizer: RowOptimizer) -> dict[str, TableState]:
        held, others = list[TableShard](), dict[str, list[TableShard]]()
        for number, shard in enumerate(self._shards):
            if shard.table.name == table.name and self.collection is not None:
                held.append(self.collection.shard(shard.name))
                for name, own in self.collection.stores.states(number).items():
                    others.setdefault(name, []).extend(own.shards)
        states: dict[str, TableState] = {}
        parts = part_specs(table, optimizer)
        if table.is_dynamic:
            parts |= ID_PARTS
            states = side_states(table, optimizer)
        if self._budget is not None and table.store_spec.chunks is not None:
            whole = self._budget.candidates(table.name)
            states[CANDIDATES] = candidate_units(whole, (), is_mapped=table.is_dynamic)
        # What else a store knows is loaded before the rows.
        return {
            f"{table.name}.{name}": replace(state, shards=tuple(others.get(name, ())))
            for name, state in states.items()
        } | {table.name: TableState(table.rows, table.dim, parts, tuple(held), is_raw=table.is_dynamic)}


def _worker_memory(
    memory: TieredMemory | None,
    rank: int,
    pooled: Sequence[tuple[LocalShard, TableSpec]],
    sequences: Sequence[tuple[LocalShard, TableSpec]],
) -> tuple[TieredMemory | None, TieredMemory | None]:
    """The budget of a worker for its pooled shards and for its sequences, in folders of their own."""
    if memory is None:
        return None, None
    of_each = [sum(spec.weight_bytes for _, spec in shards) for shards in (pooled, sequences)]
    whole = max(1, sum(of_each))
    folders = f"rank-{rank}/pooled", f"rank-{rank}/sequences"
    first, second = (
        memory.share(memory.dram * size // whole, folder)
        for size, folder in zip(of_each, folders, strict=True)
    )
    return first, second
