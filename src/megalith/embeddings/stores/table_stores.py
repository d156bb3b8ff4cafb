"""`TableStores`: the stores of a collection's tables, and the ids of a batch turned into physical rows.

Where every id is its own row, which is so for dense tables, a batch passes through untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.check import Indices, event_times
from megalith.embeddings.descriptors import CollectionLookups
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.make_budget import make_budget
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.base import RowCache, RowStore, StoreBytes, StoredTable, TierCounts
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.dynamic.batches import SharedRowUse
from megalith.embeddings.stores.dynamic.store import DynamicStore
from megalith.embeddings.stores.make_stores import make_stores
from megalith.embeddings.stores.resolved import HeldRows, ResolvedIds
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.stores.tiered_shard import TieredShard
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.embedding.descriptors import LAYOUTS, LookupDescriptor
from megalith.ops.optimizer.steps import PhysicalRows

_FEATURE = LookupDescriptor._fields.index("feature")


class TableStores:
    """The rows of all tables of a collection, each in the store that its spec names."""

    def __init__(
        self,
        tables: Sequence[StoredTable],
        seed: int,
        device: torch.device | str = "cpu",
        memory: TieredMemory | None = None,
        adaptive: AdaptivePolicy | AdaptiveBudget | None = None,
    ) -> None:
        """A budget for `adaptive` tables that is given is shared with others, and whoever made it ranks."""
        self.budget = adaptive if isinstance(adaptive, AdaptiveBudget) else make_budget(tables, adaptive)
        """What adaptive tables share, None where there are none."""
        self._ranks_chunks = not isinstance(adaptive, AdaptiveBudget)
        self.stores = make_stores(tables, seed, device, memory, self.budget)
        self.dynamic = [store for store in self.stores if isinstance(store, DynamicStore)]
        """The stores of dynamic tables: one for those that have the same partitions of ids."""
        number_of = {table.spec.name: number for number, table in enumerate(tables)}
        places = {
            number_of[table.spec.name]: (store, own)
            for store in self.stores
            for own, table in enumerate(store.tables)
        }
        self._places = [places[number] for number in range(len(tables))]
        self._numbers = {(id(store), own): number for number, (store, own) in places.items()}
        self.rows: list[PhysicalRows] = [store.rows[own] for store, own in self._places]
        pools = [store.pools[own] for store, own in self._places]
        self.pools = pools if any(pool is not None for pool in pools) else []
        """By table, the pool of those whose rows are in chunks; empty where there are none."""
        specs = [table.spec for table in tables]
        self.lookups = CollectionLookups(specs)
        """The lookups as the operators are told of them: over physical rows."""
        self._given_tables: list[tuple[int, int]] = self.lookups.descriptors[:, [0, _FEATURE]].tolist()
        self._given_features = len(self.lookups.features)
        self.touched = [
            None
            if isinstance(store, DynamicStore) or store.pools[own] is not None
            else TouchedRows(
                table.window.rows[1] - table.window.rows[0], every_row=table.optimizer.rows == "all"
            )
            for table, (store, own) in zip(tables, self._places, strict=True)
        ]
        """By table, the marks of rows that took a step; None where rows are compared by content instead."""
        self.ids_are_slots = all(store.ids_are_slots for store in self.stores)
        self.num_features = len(self.lookups.features)
        self._copied_features: list[int] | None = None
        if not self.ids_are_slots:
            self._over_slots()

    def _over_slots(self) -> None:
        """Describes the lookups over slots: those of one id differ from table to table."""
        lookups = self.lookups
        features = lookups.descriptors[:, _FEATURE].tolist()
        if len(set(features)) < len(features):
            # A feature that several tables look up: each lookup gets ids of its own.
            self._copied_features, self.num_features = features, len(features)
        rows, paddings, layouts = [], [], []
        for store, own in self._places:
            rows.append(len(store.rows[own].weight))
            paddings.append(store.padding(own))
            layouts.append(LAYOUTS.index("whole" if store.pools[own] is None else "chunked"))
        one_each = self._copied_features is not None
        self.lookups = lookups.over(rows, paddings, one_feature_each=one_each, layouts=layouts)
        numbers = lookups.descriptors[:, 0].tolist()
        placed = self.lookups.descriptors[:, _FEATURE].tolist()
        self._store_lookups: list[tuple[RowStore, list[tuple[int, int]]]] = [
            (
                store,
                [
                    (self._places[table][1], feature)
                    for table, feature in zip(numbers, placed, strict=True)
                    if self._places[table][0] is store
                ],
            )
            for store in self.stores
            if not store.ids_are_slots
        ]

    def expect(self, indices: Indices, ahead: int) -> None:
        """Says which ids the batch uses that comes `ahead` batches after the last one that was resolved."""
        if self.ids_are_slots:
            return
        values, offsets, _ = self._one_feature_each(indices)
        for store, lookups in self._ranges(offsets):
            store.expect(lookups, values, ahead)

    def resolve(self, indices: Indices, *, trains: bool, wait: bool = False) -> ResolvedIds:
        """The physical rows of a batch, in memory until it is released."""
        if self.ids_are_slots:
            return ResolvedIds(indices, self.num_features)
        values, offsets, sample_weights = self._one_feature_each(indices)
        held: list[HeldRows] = []
        resolved = ResolvedIds(indices, self.num_features, held)
        resolved.offsets, resolved.sample_weights = offsets, sample_weights
        # What no store resolves is of tables whose ids are their rows, and may need 64 bits.
        dense = any(store.ids_are_slots for store in self.stores)
        merged: Tensor | None = values.clone() if dense else None
        for store, lookups in self._ranges(offsets):
            slots, ticket = store.resolve(lookups, values, trains=trains, wait=wait)
            held.append(HeldRows(store, ticket, lookups, is_only=len(self.stores) == 1))
            if merged is None:
                merged = slots
            else:
                held[-1].put(slots, merged)
        assert merged is not None
        resolved.values = merged
        return resolved

    def tell_time(self, time: int | Tensor | None, resolved: ResolvedIds) -> None:
        """Says when the batch that arrives next happened, or when each of its samples did."""
        if not any(store.is_timed for store in self.dynamic):
            return
        times = None
        if isinstance(time, Tensor):
            samples = (len(resolved.offsets) - 1) // resolved.num_features
            times = (
                event_times(time, samples)
                .repeat(resolved.num_features)
                .repeat_interleave(resolved.offsets.diff())
            )
            time = int(time.max()) if samples else None
        self.tell_times(time, times)

    def tell_times(self, now: int | None, times: Tensor | None) -> None:
        """Says when each value of the batch that arrives next happened, int64, and when the latest of all
        samples did: None where there is no sample, or no `times`."""
        for store in self.dynamic:
            if store.is_timed:
                store.times = times
                if times is None or now is not None:
                    store.now = now

    def chunk_steps(self, resolved: ResolvedIds, step: int) -> list[ChunkStep]:
        """By table, what step number `step` needs to know of chunks; empty where no table has any."""
        if not self.pools:
            return []
        steps = {id(held.store): held.store.chunk_steps(held.ticket, step) for held in resolved.held}
        of_each = [(steps.get(id(store)), own) for store, own in self._places]
        return [given[own] if given else ChunkStep() for given, own in of_each]

    def updating(self, resolved: ResolvedIds) -> None:
        """The rows of a batch are about to take a step."""
        if any(touched is not None and touched.is_held for touched in self.touched):
            for touched, values in self._given_rows(resolved):
                touched.before(values)

    def updated(self, resolved: ResolvedIds, step: int) -> None:
        """The rows of a batch took step number `step`; ranks chunks of adaptive tables when it is time."""
        for held in resolved.held:
            held.store.updated(held.ticket)
        self._touch(resolved)
        if self.budget is not None and self._ranks_chunks:
            self.budget.after_step(step)

    def dynamic_place(self, table: int) -> tuple[DynamicStore, int] | None:
        """The store of a dynamic table and its number there; None of any other."""
        store, own = self._places[table]
        return (store, own) if isinstance(store, DynamicStore) else None

    def shared_rows(self, resolved: ResolvedIds) -> list[SharedRowUse]:
        """The rows that ids without one share in parts of dynamic tables, as a batch uses them."""
        return [
            use._replace(table=self._numbers[id(held.store), use.table])
            for held in resolved.held
            if isinstance(held.store, DynamicStore)
            for use in held.store.shared_rows(held.ticket)
        ]

    def padding(self, table: int) -> int:
        """The slot of a table that reads as zeros and takes no step, or -1."""
        store, own = self._places[table]
        return store.padding(own)

    def weight_gradient(self, gradient: Tensor, resolved: ResolvedIds) -> Tensor:
        """The gradient of the sample weights as they were given, from that of the weights as resolved."""
        if self._copied_features is None:
            return gradient
        values, offsets, _ = resolved.given
        batch = (len(offsets) - 1) // len(self.lookups.features)
        total, at = torch.zeros(len(values)), 0
        for feature in self._copied_features:
            first, last = int(offsets[feature * batch]), int(offsets[(feature + 1) * batch])
            total[first:last] += gradient[at : at + last - first]
            at += last - first
        return total

    def is_whole(self, table: int) -> bool:
        """Whether every row of a table is in memory, in the order of ids."""
        return self._places[table][0].ids_are_slots

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """The rows of a table as a checkpoint sees them."""
        store, own = self._places[table]
        shard, touched = store.shard(own, writes), self.touched[table]
        return replace(shard, touched=touched) if isinstance(shard, DenseShard | TieredShard) else shard

    def states(self, table: int) -> Mapping[str, TableState]:
        """Other state of a table that travels with checkpoints."""
        store, own = self._places[table]
        return store.states(own)

    def bytes(self) -> StoreBytes:
        """What all stores take."""
        total = StoreBytes()
        for store in self.stores:
            total = total.plus(store.bytes())
        return total

    def counts(self) -> TierCounts:
        """What the tiers of all stores did."""
        total = TierCounts()
        for store in self.stores:
            total = total.plus(store.counts())
        return total

    def caches(self) -> list[RowCache]:
        """The caches of all stores."""
        return [cache for store in self.stores for cache in store.caches()]

    def _touch(self, resolved: ResolvedIds) -> None:
        """Marks the rows of a batch that took a step, for whoever watches."""
        for touched, values in self._given_rows(resolved):
            touched.touch(values)

    def _given_rows(self, resolved: ResolvedIds) -> Iterator[tuple[TouchedRows, Tensor]]:
        """Of each table that somebody watches, the rows of a batch, feature by feature."""
        values, offsets, _ = resolved.given
        batch = (len(offsets) - 1) // max(1, self._given_features)
        edges: list[int] = []
        for table, feature in self._given_tables:
            touched = self.touched[table]
            if touched is not None and touched.is_watched:
                if not edges:
                    ends = offsets[::batch] if batch else offsets.new_zeros(self._given_features + 1)
                    edges = ends.tolist()
                yield touched, values[edges[feature] : edges[feature + 1]]

    def _ranges(self, offsets: Tensor) -> list[tuple[RowStore, Tensor]]:
        """Of each store that resolves ids: int64 rows (table, first value, last value)."""
        batch = (len(offsets) - 1) // self.num_features
        edges = offsets[::batch].tolist() if batch else [0] * (self.num_features + 1)
        return [
            (store, torch.tensor([(own, edges[feature], edges[feature + 1]) for own, feature in lookups]))
            for store, lookups in self._store_lookups
        ]

    @torch.no_grad()
    def _one_feature_each(self, indices: Indices) -> Indices:
        """The same batch with the ids of a feature once for every table that looks it up."""
        if self._copied_features is None:
            return indices
        values, offsets, sample_weights = indices
        batch = (len(offsets) - 1) // len(self.lookups.features)
        edges = [offsets[feature * batch : (feature + 1) * batch + 1] for feature in self._copied_features]
        ranges = [(int(own[0]), int(own[-1])) for own in edges]
        lengths = torch.cat([own.diff() for own in edges])
        copied = torch.cat([offsets.new_zeros(1), lengths.cumsum(0)])

        def spread(each: Tensor) -> Tensor:
            return torch.cat([each[first:last] for first, last in ranges])

        return spread(values), copied, None if sample_weights is None else spread(sample_weights)
