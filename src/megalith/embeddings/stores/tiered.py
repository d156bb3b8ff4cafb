"""`TieredStore`: rows on disk under a cache in memory, for tables whose rows have one shape.

Rows are read before a batch is computed and cannot leave until it is released, so every kernel works on rows
in memory, and results are those of tables that are whole in memory. The pool is native
(`ops.stores.tiered_rows`); this class numbers the batches and waits where rows under way leave no room.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.errors import CacheFullError, storage_errors
from megalith.core.lock import FolderLock
from megalith.core.spans import span
from megalith.embeddings.stores.base import RowCache, StoreBytes, StoredTable, TierCounts, WholeRowSteps
from megalith.embeddings.stores.row_files import clear_rows, layout_digest
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.stores.tiered_shard import SegmentPool
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.embedding.native_tables import allocate_table
from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.tiered_rows import (
    DiskSettings,
    PooledTable,
    PoolStatistics,
    TieredRows,
    segment_bytes_for,
)

LEAST_ROWS = 64
"""A cache has room for so many rows, or for all there are."""


class RowShape:
    """What the rows of a pool have in common: the type and number of their weights, and their state."""

    def __init__(self, table: StoredTable) -> None:
        spec, optimizer = table.spec, table.optimizer
        self.dim, self.dtype = spec.dim, getattr(torch, spec.dtype)
        self.states: tuple[str, str] = (optimizer.first_state, optimizer.second_state)

    @property
    def key(self) -> str:
        """A name that tells shapes apart, and that can be one of a folder."""
        return f"{str(self.dtype).removeprefix('torch.')}-{self.dim}-{'-'.join(self.states)}"

    @property
    def row_bytes(self) -> int:
        """Of a row with its state."""
        numbers = {"none": 0, "row": 1, "full": self.dim}
        return self.dim * self.dtype.itemsize + 4 * sum(numbers[state] for state in self.states)

    def allocate(self, slots: int) -> PhysicalRows:
        """Memory for so many rows; the system gives it as it is touched."""

        def state(shape: str) -> Tensor:
            if shape == "none":
                return torch.zeros(0)
            numbers = allocate_table(slots, self.dim if shape == "full" else 1, torch.float32)
            return numbers if shape == "full" else numbers.view(-1)

        ids = None
        if self.dtype != torch.float32:
            # Rounding at random is a function of the id.
            ids = torch.zeros(slots, dtype=torch.int64)
        first, second = map(state, self.states)
        return PhysicalRows(allocate_table(slots, self.dim, self.dtype), first, second, ids)


class TieredStore(WholeRowSteps):
    """Rows of some tables, of which as many are in memory as `memory.dram` allows."""

    ids_are_slots = False

    def __init__(
        self, tables: Sequence[StoredTable], memory: TieredMemory, seed: int, parents: Sequence[Path] = ()
    ) -> None:
        """`parents` are folders above its own, the nearest first, that go with it once they are empty."""
        assert memory.path is not None
        self._parents = tuple(parents)
        self.tables, self.memory = tuple(tables), memory
        self.shape = RowShape(tables[0])
        rows = sum(table.spec.rows for table in tables)
        capacity = min(memory.dram // self.shape.row_bytes, rows)
        self._physical = self.shape.allocate(capacity + 1)
        self.rows = (self._physical,) * len(tables)
        self.pools = (None,) * len(tables)
        self._pooled = [
            PooledTable(table.spec.rows, table.window.start_values(seed), _padding(table)) for table in tables
        ]
        self._folder, self._capacity = memory.path, capacity
        self._pool: TieredRows | None = None
        self._segments: SegmentPool | None = None
        # Batches are resolved one after the other, also where one waits for room.
        self._order = threading.Lock()
        self._released = threading.Condition(threading.RLock())
        self._held: set[int] = set()
        self._last = 0

    @property
    def pool(self) -> TieredRows:
        """The native pool; nothing is written before it is first used."""
        if self._pool is None:
            lock = FolderLock(self._folder, "holds rows of tables that are used")
            lock.acquire()
            weakref.finalize(self, _remove, self._folder, lock, self._parents)
            self._pool = self._new_pool()
        return self._pool

    def padding(self, table: int) -> int:
        """The slot that reads as zeros."""
        return -1 if self.tables[table].spec.padding_index is None else self._capacity

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Keeps the rows that a coming batch uses."""
        if self.memory.policy == "lookahead":
            self.pool.expect(lookups, values, self._last + ahead)

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """Slots of the ids; begins to read what is not in memory."""
        with self._order:
            with self._released:
                self._last += 1
                ticket = self._last
                self._held.add(ticket)
            try:
                while True:
                    with self._released:
                        holders = len(self._held)
                    try:
                        return self.pool.resolve(lookups, values, ticket, trains), ticket
                    except CacheFullError as error:
                        if not self._wait_for_room(holders, wait):
                            raise self._too_small(holders) from error
            except BaseException:
                self.release(ticket)
                raise

    def _too_small(self, holders: int) -> CacheFullError:
        rows = "one batch" if holders == 1 else f"{holders} batches that are looked up at once"
        return CacheFullError(
            f"The rows of {rows} do not fit into the cache of {self._capacity:,} rows for table "
            f"'{self.tables[0].window.table.name}' and those like it; raise memory.dram, or take smaller "
            "batches (data.batch_size, data.eval_batch_size)."
        )

    def arrive(self, ticket: int) -> Tensor | None:
        """Waits for the rows that are being read."""
        with span("rows from disk"):
            self.pool.arrive(ticket)
        return None

    def release(self, ticket: int) -> None:
        """Rows may leave that no earlier batch holds either."""
        with self._released:
            self._held.discard(ticket)
            if self._pool is None or not self._pool.close.alive:
                # As a process ends, what was never computed may outlive the pool.
                return
            self._pool.release(min(self._held, default=self._last + 1) - 1)
            self._released.notify_all()

    def _wait_for_room(self, holders: int, wait: bool) -> bool:
        """Whether a batch was released since there were `holders` of rows, this one included."""
        with self._released:
            if holders > 1 and wait:
                self._released.wait_for(lambda: len(self._held) < holders)
            return len(self._held) < holders

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """The trained rows; all others are their start values."""
        if self._segments is None:
            self._segments = SegmentPool(self.pool)
        return self._segments.shard(table, writes)

    def states(self, table: int) -> Mapping[str, TableState]:
        """None."""
        return {}

    def bytes(self) -> StoreBytes:
        """Rows in memory as they were allocated, and files as they are."""
        weight, first, second, ids = self._physical
        found = self._statistics()
        slots = 0 if ids is None else ids.numel() * 8
        return StoreBytes(
            weights=weight.numel() * weight.element_size(),
            state=4 * (first.numel() + second.numel()),
            index=found.index_bytes,
            bookkeeping=found.directory_bytes + found.buffer_bytes + slots,
            disk=found.file_bytes,
        )

    def counts(self) -> TierCounts:
        """What the pool counted."""
        found = self._statistics()
        return TierCounts(
            lookups=found.lookups,
            hits=found.hits,
            reads=found.read_rows,
            new_rows=found.new_rows,
            written_rows=found.written_back_rows,
            read_bytes=found.read_bytes,
            written_bytes=found.written_bytes,
        )

    def caches(self) -> Sequence[RowCache]:
        """One for all tables."""
        windows = tuple(table.window for table in self.tables)
        return (RowCache(windows, self.shape.row_bytes, self._capacity),)

    def _statistics(self) -> PoolStatistics:
        if self._pool is None:
            return PoolStatistics(*(0 for _ in PoolStatistics._fields))
        return self._pool.statistics()

    def _new_pool(self) -> TieredRows:
        """A pool without a row; files of an earlier one are removed."""
        with storage_errors(self._folder):
            clear_rows(self._folder)
        weight, first, second, ids = self._physical
        memory = self.memory
        parts = [part for part in (weight, first, second) if part.numel()]
        disk = DiskSettings(
            folder=self._folder,
            layout=layout_digest(self._pooled, parts),
            segment_bytes=segment_bytes_for(self.shape.row_bytes * sum(each.rows for each in self._pooled)),
            max_bytes=memory.disk or 0,
            engine="threads" if memory.engine == "threads" else "io_uring",
        )
        return TieredRows(self._pooled, parts, disk, memory.policy, slot_ids=ids)


def _padding(table: StoredTable) -> int:
    return -1 if table.spec.padding_index is None else table.spec.padding_index


def _remove(folder: Path, lock: FolderLock, parents: Sequence[Path]) -> None:
    """The files of a store that is gone; what is worth keeping is in checkpoints."""
    with suppress(OSError):
        clear_rows(folder)
        lock.release()
        for empty in (folder, *parents):
            empty.rmdir()
