"""`TieredStore`: rows on disk under a cache in memory, for tables whose rows have one shape.

Rows are read before a batch is computed and cannot leave until it is released, so every kernel works on rows
in memory, and results are those of tables that are whole in memory. The pool is native
(`ops.stores.tiered_rows`); this class numbers the batches and waits where rows under way leave no room.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.errors import CacheFullError, storage_errors
from megalith.embeddings.stores.base import StoreBytes, StoredTable, TierCounts
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.table_state import TableShard
from megalith.ops.embedding.native_tables import allocate_table
from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows

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


class TieredStore:
    """Rows of some tables, of which as many are in memory as `memory.dram` allows."""

    ids_are_slots = False

    def __init__(self, tables: Sequence[StoredTable], memory: TieredMemory, seed: int) -> None:
        assert memory.path is not None
        self.tables, self.memory = tuple(tables), memory
        self.shape = RowShape(tables[0])
        rows = sum(table.spec.rows for table in tables)
        capacity = min(memory.dram // self.shape.row_bytes, rows)
        self._physical = self.shape.allocate(capacity + 1)
        self.rows = (self._physical,) * len(tables)
        self._pooled = [
            PooledTable(table.spec.rows, table.window.start_values(seed), _padding(table)) for table in tables
        ]
        self._folder = memory.path
        self.pool = self._new_pool()
        # The native pool is used by one thread at a time; tickets have a lock of their own, so that whoever
        # releases does not wait for a read.
        self._lock = threading.RLock()
        self._released = threading.Condition(threading.RLock())
        self._held: set[int] = set()
        self._last = 0

    def padding(self, table: int) -> int:
        """The slot that reads as zeros."""
        return -1 if self.tables[table].spec.padding_index is None else self.pool.padding_slot

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Keeps the rows that a coming batch uses."""
        if self.memory.policy == "lookahead":
            with self._lock:
                self.pool.expect(lookups, values, self._last + ahead)

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """Slots of the ids; reads what is not in memory."""
        with self._lock:
            with self._released:
                self._last += 1
                ticket = self._last
                self._held.add(ticket)
            try:
                while True:
                    with self._released:
                        others = len(self._held)
                    try:
                        return self.pool.resolve(lookups, values, ticket, trains), ticket
                    except CacheFullError:
                        if not self._wait_for_room(others, wait):
                            raise
            except BaseException:
                self.release(ticket)
                raise

    def release(self, ticket: int) -> None:
        """Rows may leave that no earlier batch holds either."""
        with self._released:
            self._held.discard(ticket)
            self.pool.release(min(self._held, default=self._last + 1) - 1)
            self._released.notify_all()

    def _wait_for_room(self, others: int, wait: bool) -> bool:
        """Whether another batch was released since there were `others` that held rows."""
        with self._released:
            if others <= 1 or not wait:
                return len(self._held) < others
            self._released.wait_for(lambda: len(self._held) < others)
            return True

    def shard(self, table: int) -> TableShard:
        """The trained rows; all others are their start values."""
        raise NotImplementedError

    def bytes(self) -> StoreBytes:
        """Rows in memory as they were allocated, and files as they are."""
        found = self.pool.statistics()
        weight, first, second, ids = self._physical
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
        found = self.pool.statistics()
        return TierCounts(
            lookups=found.lookups,
            hits=found.hits,
            reads=found.read_rows,
            new_rows=found.new_rows,
            written_rows=found.written_back_rows,
            read_bytes=found.read_bytes,
            written_bytes=found.written_bytes,
        )

    def _new_pool(self) -> TieredRows:
        """A pool without a row; files of an earlier one are removed."""
        _clear(self._folder)
        weight, first, second, ids = self._physical
        memory = self.memory
        disk = DiskSettings(
            folder=self._folder,
            layout=self._layout(),
            max_bytes=memory.disk or 0,
            engine="threads" if memory.engine == "threads" else "io_uring",
        )
        parts = [part for part in (weight, first, second) if part.numel()]
        return TieredRows(self._pooled, parts, disk, memory.policy, slot_ids=ids)

    def _layout(self) -> int:
        """A digest of what a row is and which tables there are, 63 bits."""
        tables = [(table.window.table.name, table.window.rows, table.window.columns) for table in self.tables]
        digest = hashlib.sha256(f"{self.shape.key}:{tables}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1


def _padding(table: StoredTable) -> int:
    return -1 if table.spec.padding_index is None else table.spec.padding_index


def _clear(folder: Path) -> None:
    """A folder without segment files; nothing else in it is touched."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.rows"):
            path.unlink()
