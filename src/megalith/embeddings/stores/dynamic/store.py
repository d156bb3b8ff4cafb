"""`DynamicStore`: ids of any 64-bit value, of which a bounded number have a row at a time.

    raw ids -> IdMap -> row numbers -> the inner store -> slots

One store serves all dynamic tables of a process, so that a batch is one call of the map; on many processes it
serves all parts of tables with the same partitions of ids. Which ids have a row is decided in `arrive`, batch
after batch: `resolve` may run ahead and only guesses, to begin reads early. So results do not depend on the
depth of a pipeline, and a batch that is not trained on changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.embeddings.row_block import WEIGHT, RowBlock
from megalith.embeddings.stores.base import RowCache, RowStore, StoreBytes, StoredTable, TierCounts
from megalith.embeddings.stores.dynamic.batches import DynamicBatch, DynamicBatches, SharedRowUse
from megalith.embeddings.stores.dynamic.chunks import DynamicChunks
from megalith.embeddings.stores.dynamic.counts import DynamicCounts, added_by_table
from megalith.embeddings.stores.dynamic.settings import (
    UNKNOWN_ID,
    dynamic_rows,
    dynamic_store,
    is_part,
    partitions_of,
)
from megalith.embeddings.stores.dynamic.shard import DynamicShard
from megalith.embeddings.stores.dynamic.side_states import held_side_states
from megalith.embeddings.stores.dynamic.values import InnerLookups, MappedValues, without_padding
from megalith.embeddings.table_state import ReadableShard, TableShard, TableState
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.ids.changes import EvictedIds, NewIdRows
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.partitions import id_partitions
from megalith.ops.ids.policies import id_table_spec
from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.start_rows import BegunRows, StartRows, start_rows_
from megalith.ops.stores.start_values import StartValues, start_values_twin

_SEARCHED_AT_ONCE = 8
"""Lookups: some tenths of a millisecond."""


class DynamicStore:
    """Dynamic tables over the tables of row numbers that `inner` stores hold, which have the same names.

    All of them have the same partitions of ids.
    """

    ids_are_slots = False

    def __init__(self, tables: Sequence[StoredTable], inner: Sequence[RowStore], seed: int) -> None:
        self.tables, self.inner = tuple(tables), tuple(inner)
        names = {table.spec.name: (store, own) for store in inner for own, table in enumerate(store.tables)}
        self.places = [names[table.spec.name] for table in tables]
        self.numbers = [dynamic_rows(table.spec, is_part=is_part(table.window)) for table in tables]
        stores = [dynamic_store(table.spec) for table in tables]
        wholes = [table.window.table for table in tables]
        self.ids = IdMap(
            [
                id_table_spec(store, whole.rows, seed, whole.name)
                for store, whole in zip(stores, wholes, strict=True)
            ],
            partitions=partitions_of(tables[0].window),
            threads=0,
        )
        self.pools = tuple(store.pools[own] for store, own in self.places)
        self.chunks = DynamicChunks(self.places)
        """Of its tables, those whose rows are in chunks."""
        self.rows = tuple(_with_ids(store.rows[own]) for store, own in self.places)
        self.starts = [table.window.start_values(seed) for table in tables]
        self.score_factors = [1.0] * len(tables)
        """By table, what scores of a checkpoint are multiplied by, which may be of another policy."""
        self.now: int | None = None
        """The event time of the batches that come, in seconds: for tables whose ids expire by it."""
        self.times: Tensor | None = None
        """int64: the time of each value of the batch that arrives next; None where all have `now`."""
        self.on_evicted: Callable[[int, EvictedIds], None] | None = None
        """Told of ids that lost their row, and in which batch."""
        self._seed = seed
        self._start_rows = StartRows(self.rows, self.starts)
        self._unknown = np.array([rows.unknown for rows in self.numbers], dtype=np.int32)
        self._zero_rows = [rows.padding for rows in self.numbers]
        self._shared = [
            number
            for number, table in enumerate(tables)
            if is_part(table.window) and self.numbers[number].unknown != self.numbers[number].padding
        ]
        self.is_timed = any(table.timed for table in self.ids.tables)
        """Whether ids of a table expire by event time."""
        self._paddings = [table.spec.padding_index for table in tables]
        looks = [store.expiry for store in stores]
        ruled = [look for look in looks if (look.batches, look.seconds, look.score) != (None, None, None)]
        self._looks_every = min((look.interval for look in ruled), default=0)
        self._batches = DynamicBatches()
        self._moving = [
            InnerLookups(store, [own if place is store else -1 for place, own in self.places])
            for store in inner
            if not store.ids_are_slots
        ]
        # Chunks are all in memory: there is nothing to begin to read.
        self._reading = [own for own in self._moving if own.store.pools[0] is None]
        self._halves = [
            number
            for number, table in enumerate(tables)
            if table.spec.dtype != "float32" and number not in self.chunks
        ]
        self._has_begun = False

    @property
    def names(self) -> list[str]:
        """Of its tables."""
        return [table.window.table.name for table in self.tables]

    def padding(self, table: int) -> int:
        """The slot that reads as zeros."""
        store, own = self.places[table]
        return store.padding(own)

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Keeps the rows of ids that have one by now."""
        if self._reading:
            given = without_padding(lookups, values.long().contiguous(), self._paddings)
            rows = self._placed(given, self._searched(given))
            for own in self._reading:
                own.store.expect(own.of(lookups), rows, ahead)

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """Looks up which ids have a row by now and begins to read these; slots come with `arrive`.

        Only a caller that runs ahead, in another thread, `wait`s: then the search is off the thread that
        computes, which has only to see that rows are still those of their ids.
        """
        batch = DynamicBatch(lookups, values.long().contiguous(), trains)
        if self._reading or wait:
            given = without_padding(lookups, batch.values, self._paddings)
            batch.guesses = found = self._searched(given)
            rows = self._placed(given, found.clone()) if self._reading else found
            for own in self._reading:
                self._batches.guess(batch, own.store, own.of(lookups), rows)
        return torch.zeros(len(values), dtype=torch.int32), self._batches.add(batch)

    def arrive(self, ticket: int) -> Tensor | None:
        """Decides which ids have a row, begins new ones, and waits for rows that are being read."""
        self.begin()
        self.chunks.settle(self.ids)
        batch = self._batches[ticket]
        rows, new = self._decided(batch)
        new = self.chunks.begin(new)
        # Shared rows take a step with the ids of other processes, whoever looks them up here.
        shared = self._shared if batch.trains else []
        whole = torch.tensor([number for number in shared if number not in self.chunks], dtype=torch.int64)
        unknown = torch.from_numpy(self._unknown)[whole].long()
        slots, others = self._brought(
            batch, rows, torch.cat([new.tables, whole]), torch.cat([new.rows, unknown])
        )
        begun, unknown_slots = others.split([len(new.ids), len(whole)])
        if len(new.ids):
            start_rows_(self._start_rows, BegunRows(new.tables, begun, new.ids))
        if shared:
            read = self._unknown_values(batch, rows)
            found = dict(zip(whole.tolist(), unknown_slots.tolist(), strict=True))
            batch.shared = [SharedRowUse(number, read[number], found.get(number, 0)) for number in shared]
        for number in self._halves:
            self._note_ids(number, batch, rows, slots)
        batch.slots = slots
        return slots

    def current(self, ticket: int) -> Tensor | None:
        """Slots where chunks have moved since."""
        batch = self._batches[ticket]
        slots: Tensor | None = None
        for own in self._moving:
            moved = [held.current(number) for held, number in batch.held if held is own.store]
            for found in moved:
                if found is None:
                    continue
                assert batch.slots is not None
                slots = batch.slots = batch.slots.clone()
                for _, first, last in own.of(batch.lookups).tolist():
                    slots[first:last] = found[first:last]
        return slots

    def chunk_steps(self, ticket: int, step: int) -> Sequence[ChunkStep]:
        """Of tables whose rows are in chunks."""
        return self.chunks.steps(self._batches[ticket], step)

    def updated(self, ticket: int) -> None:
        """Chunks remember how much rows without any were missed."""
        self.chunks.updated(self._batches[ticket])

    def shared_rows(self, ticket: int) -> list[SharedRowUse]:
        """What ids without a row share in parts of tables, and the values of a ticket that read it."""
        return [self.chunks.with_slot(use) for use in self._batches[ticket].shared]

    def owns(self, ids: Tensor) -> Tensor:
        """Which ids are of the partitions that are here."""
        (first, last), partitions = self.ids.partitions, id_partitions(ids)
        return (partitions >= first) & (partitions < last)

    def release(self, ticket: int) -> None:
        """The rows of a ticket may leave memory; their ids keep them."""
        self._batches.release(ticket)

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """The ids that have a row, with it."""
        self.begin()
        return DynamicShard(self, table, writes)

    def inner_shard(self, table: int) -> ReadableShard:
        """The rows of a table by their numbers."""
        store, own = self.places[table]
        return cast(ReadableShard, store.shard(own))

    def states(self, table: int) -> Mapping[str, TableState]:
        """Clock, counter, shared row and candidates for chunks; the rows are measured by the clock."""
        self.begin()
        return {**held_side_states(self, table), **self.chunks.states(table)}

    def bytes(self) -> StoreBytes:
        """The rows underneath, and the map of ids."""
        total = StoreBytes()
        for store in self.inner:
            total = total.plus(store.bytes())
        parts = self.ids.bytes()
        raw = self.chunks.bytes() + sum(
            8 * rows.ids.numel()
            for rows, (store, own) in zip(self.rows, self.places, strict=True)
            if rows.ids is not None and store.rows[own].ids is None
        )
        index = parts.pop("index")
        return total.plus(StoreBytes(index=index, bookkeeping=sum(parts.values()) + raw))

    def counts(self) -> TierCounts:
        """What the tiers underneath did."""
        total = TierCounts()
        for store in self.inner:
            total = total.plus(store.counts())
        return total

    def dynamic_counts(self) -> DynamicCounts:
        """What its tables did so far."""
        total = DynamicCounts(map_bytes=sum(self.ids.bytes().values()) + self.chunks.bytes())
        for counts in self.counts_by_table().values():
            total = total.plus(counts)
        return total

    def counts_by_table(self) -> dict[str, DynamicCounts]:
        """The same of each table, without the bytes of the map, which they share."""
        return added_by_table(
            (name, DynamicCounts.of(self.ids.statistics(table)._replace(bound=self.numbers[table].bound), 0))
            for table, name in enumerate(self.names)
        )

    def caches(self) -> Sequence[RowCache]:
        """None that could be predicted from the data: which ids have a row changes."""
        return ()

    def begin(self) -> None:
        """Gives the rows that ids without one share their start values; once, before anything is read."""
        if self._has_begun:
            return
        self._has_begun = True
        for number, (store, own) in enumerate(self.places):
            if self.numbers[number].unknown != self.numbers[number].padding:
                shard = store.shard(own)
                start = self.unknown_start(number)
                parts = {
                    name: torch.zeros(1, *((start.dim,) if spec.per == "element" else ()), dtype=spec.dtype)
                    for name, spec in shard.specs.items()
                }
                parts[WEIGHT] = start_values_twin(start, torch.tensor([UNKNOWN_ID]))
                shard.load(RowBlock(torch.tensor([self.numbers[number].unknown]), (0, start.dim), parts))

    def unknown_start(self, table: int) -> StartValues:
        """How the row that ids without one share begins."""
        window = self.tables[table].window
        name = f"{window.table.name}.unknown"
        named = window._replace(table=window.table.model_copy(update={"name": name}))
        return named.start_values(self._seed)

    def _decided(self, batch: DynamicBatch) -> tuple[Tensor, NewIdRows]:
        """The rows of a batch, int32, with rows for ids without one; and rows that begin."""
        number = self.ids.batch + 1 if batch.trains else self.ids.batch
        if batch.trains and self._looks_every and number % self._looks_every == 0:
            self.leave(self.ids.expire(number, self._time()), number)
        given = without_padding(batch.lookups, batch.values, self._paddings)
        times = self._times(given) if batch.trains and self.is_timed else None
        asked = given.lookups, given.values, number, batch.trains, times
        rows, new, evicted = self.ids.resolve(*asked, guesses=batch.guesses)
        batch.guesses = None
        self.leave(evicted, number)
        return self._placed(given, rows), new

    def leave(self, evicted: EvictedIds, batch: int) -> None:
        """Ids have lost their row: their chunks go, and whoever wants to know is told."""
        self.chunks.leave(evicted)
        if self.on_evicted is not None and len(evicted.ids):
            self.on_evicted(batch, evicted)

    def _searched(self, given: MappedValues) -> Tensor:
        """The rows that ids have by now; nothing changes. Some lookups at a time: others wait for the map."""
        rows = torch.from_numpy(np.full(len(given.values), -1, dtype=np.int32))
        for some in given.lookups.split(_SEARCHED_AT_ONCE):
            self.ids.resolve(some, given.values, self.ids.batch, trains=False, guesses=rows)
        return rows

    def _placed(self, given: MappedValues, rows: Tensor) -> Tensor:
        return given.placed(rows, self._unknown, self._zero_rows)

    def _unknown_values(self, batch: DynamicBatch, rows: Tensor) -> dict[int, Tensor]:
        """By table, the values whose id has no row, rising."""
        wanted = np.full(len(rows), -1, dtype=np.int32)
        for table, first, last in batch.lookups.tolist():
            wanted[first:last] = self._unknown[table]
        missing = np.flatnonzero(rows.numpy() == wanted)
        found: dict[int, list[np.ndarray]] = {number: [] for number in range(len(self.tables))}
        for table, first, last in sorted(batch.lookups.tolist(), key=lambda lookup: lookup[1]):
            found[table].append(missing[slice(*np.searchsorted(missing, (first, last)))])
        none = np.empty(0, dtype=np.int64)
        return {table: torch.from_numpy(np.concatenate([none, *some])) for table, some in found.items()}

    def _brought(
        self, batch: DynamicBatch, rows: Tensor, tables: Tensor, others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The slots of a batch's rows and of `others`, int64, of these `tables`; all are in memory."""
        if not self._moving:
            return rows, others
        order = tables.argsort(stable=True)
        slots, brought = rows.clone(), others.clone()
        for own in self._moving:
            lookups, here = own.with_others(batch.lookups, tables[order], len(rows))
            here = order[here]
            found = self._batches.bring(
                batch, own.store, lookups, torch.cat([rows, others[here].to(rows.dtype)])
            )
            for _, first, last in own.of(batch.lookups).tolist():
                slots[first:last] = found[first:last]
            brought[here] = found[len(rows) :].long()
        return slots, brought

    def _note_ids(self, number: int, batch: DynamicBatch, rows: Tensor, slots: Tensor) -> None:
        """Which id each row has: rounding at random depends on it."""
        ids = self.rows[number].ids
        assert ids is not None
        for _, first, last in batch.lookups[batch.lookups[:, 0] == number].tolist():
            known = rows[first:last] < self.numbers[number].bound
            ids[slots[first:last].long()] = torch.where(known, batch.values[first:last], UNKNOWN_ID)
        for use in batch.shared:
            if use.table == number:
                ids[use.slot] = UNKNOWN_ID

    def _times(self, given: MappedValues) -> Tensor:
        """The event time of each value that the map is asked about."""
        if self.times is None:
            return torch.full((len(given.values),), self._time())
        return self.times if given.kept is None else self.times[given.kept]

    def _time(self) -> int:
        if self.now is None:
            if not self.is_timed:
                return 0
            timed = next(n for n, table in zip(self.names, self.ids.tables, strict=True) if table.timed)
            raise DataError(
                f"Ids of table '{timed}' expire by event time (expiry.seconds), "
                "and the batch has none; set `event_time` of the collection before each batch, or expire by "
                "batches."
            )
        return self.now


def _with_ids(rows: PhysicalRows) -> PhysicalRows:
    """Rows with room for their ids, where rounding at random needs them."""
    if rows.ids is not None or rows.weight.dtype == torch.float32:
        return rows
    return rows._replace(ids=torch.zeros(len(rows.weight), dtype=torch.int64))
