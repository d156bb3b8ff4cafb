"""`RowStore`: the interface under every table. Kernels run over physical rows; a store says which an id has.

    slots, ticket = store.resolve(lookups, values, trains=True, wait=True)
    store.arrive(ticket)                                           # in memory until released
    ... kernels over store.rows ...
    store.release(ticket)

A store serves one table or several that share memory. Results never depend on slot numbers: start values are
a function of (seed, table, id, column), and rounding of (seed, step, table, id, column).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.optimizer.steps import PhysicalRows


class StoredTable(NamedTuple):
    """A table as a store is given it."""

    spec: TableSpec
    window: TableWindow
    optimizer: RowOptimizer


@dataclass(frozen=True, slots=True)
class StoreBytes:
    """What a store takes, all of it."""

    weights: int = 0
    """In memory, as is all but `disk`."""
    state: int = 0
    index: int = 0
    """Which rows are stored, and where."""
    bookkeeping: int = 0
    """Which rows are in memory, buffers, what leaves next."""
    disk: int = 0
    utility: int = 0
    """What chunks of adaptive tables are worth, and which of them live."""
    sketch: int = 0
    """What rows of adaptive tables would be worth that have no chunk."""
    free: int = 0
    """Taken from the system with no row in it."""

    @property
    def memory(self) -> int:
        """All that is not on disk."""
        return sum(astuple(self)) - self.disk

    def plus(self, other: StoreBytes) -> StoreBytes:
        """Both together."""
        both = zip(astuple(self), astuple(other), strict=True)
        return StoreBytes(*(one + more for one, more in both))


class TierCounts(NamedTuple):
    """What tiers did since the store was made."""

    lookups: int = 0
    hits: int = 0
    reads: int = 0
    """Rows read from disk."""
    new_rows: int = 0
    """Rows begun from their start values."""
    written_rows: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def plus(self, other: TierCounts) -> TierCounts:
        """Both together."""
        return TierCounts(*(one + more for one, more in zip(self, other, strict=True)))


class RowCache(NamedTuple):
    """Rows in memory over rows on disk: what a prediction of hits and reads has to know."""

    tables: tuple[TableWindow, ...]
    """Those that share it."""
    row_bytes: int
    """With optimizer state."""
    capacity: int
    """Rows in memory."""


class RowStore(Protocol):
    """The rows of some tables. One thread resolves at a time; another may release."""

    @property
    def tables(self) -> Sequence[StoredTable]:
        """Those it was made for."""

    @property
    def rows(self) -> Sequence[PhysicalRows]:
        """By table; several may be the same memory. Addresses never move."""

    @property
    def pools(self) -> Sequence[ChunkedRows | None]:
        """By table, the pool that holds its rows in chunks, and whose slots it gives; None: `rows` do."""

    @property
    def ids_are_slots(self) -> bool:
        """Whether every id is its own slot, always in memory: then nothing needs to be resolved."""

    def padding(self, table: int) -> int:
        """The slot of the table's padding id, or -1."""

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Says which ids the batch that is `ahead` batches away will use."""

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """Slots of the ids, whose rows come into memory until their ticket is released.

        `lookups` are int64 rows (table, first value, last value). What `trains` counts as changed. `wait`
        waits for others to release where their rows leave no room; without it that is an error.
        """

    def arrive(self, ticket: int) -> Tensor | None:
        """Waits until the rows of a ticket are in memory; its slots, if they are others by now.

        The thread that computes calls it, in the order of batches, just before each is computed. What changes
        which rows there are happens here: `resolve` may run ahead, and must not show in results.
        """

    def current(self, ticket: int) -> Tensor | None:
        """The slots of a ticket that has arrived, if they are others by now: rows may have moved since."""

    def chunk_steps(self, ticket: int, step: int) -> Sequence[ChunkStep]:
        """By table, what step number `step` on a ticket's rows needs to know of chunks; empty: nothing."""

    def updated(self, ticket: int) -> None:
        """The rows of a ticket took their step, with the `chunk_steps` that were given for it."""

    def release(self, ticket: int) -> None:
        """The rows of a ticket may leave."""

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """A table's rows as a checkpoint sees them; `writes` is false of all copies but one."""

    def states(self, table: int) -> Mapping[str, TableState]:
        """Other state of a table that travels by rows of its own, by name; what is loaded first comes first,
        and all of it before the table's rows."""

    def bytes(self) -> StoreBytes:
        """What the store takes now."""

    def counts(self) -> TierCounts:
        """What its tiers did so far."""

    def caches(self) -> Sequence[RowCache]:
        """Its caches over a disk; none where all rows are in memory."""


class WholeRowSteps:
    """What stores of whole rows that never move under a batch have in common."""

    def current(self, ticket: int) -> Tensor | None:
        """No row moves."""
        del ticket
        return None

    def chunk_steps(self, ticket: int, step: int) -> Sequence[ChunkStep]:
        """Rows are whole."""
        del ticket, step
        return ()

    def updated(self, ticket: int) -> None:
        """Nothing follows."""
