"""`ChunkedRows`: a native pool of rows cut into chunks, of which only the live ones are stored.

    pool = ChunkedRows(tables, ChunkShape(dim=64, width=16, first_state="row"), capacity_bytes=1 << 30)
    found = pool.resolve(lookups, values, trains=True, first_chunks=1, room=1 << 20)
    ... kernels over found.slots (ops.embedding.native_tables) ...
    pool.rewrite(table, ids, masks)      # prune, grow, remove: slots of before are stale, `generation` tells
    pool.compact()                       # memory goes back to the system

A pruned chunk reads as zeros. The twin is in `chunked_rows_twin.py`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape
from megalith.ops.stores.tiered_rows import PooledTable
from megalith.ops.tensors import address, check_lookups

PADDING_SLOT, FIRST_ABSENT = 0, -(2**31)
"""The slot that reads as zeros and does not count; as int32, the first of those that count."""
INDEX_FORMS = ("hash", "ranked bitmap", "array")


class ResolvedSlots(NamedTuple):
    """The ids of a batch as the kernels take them."""

    slots: Tensor
    """int32 [values]; values outside of all lookups have the slot of padding"""
    absent: Tensor
    """int64 [absent, 2]: (table, id) of each id without a record; the n-th has slot FIRST_ABSENT + n"""
    room: int
    """Bytes that are left of those that new rows might take."""


@dataclass(frozen=True, slots=True)
class ChunkedBytes:
    """What a pool takes in memory, by part."""

    weights: int
    state: int
    utility: int
    """Utilities, masks and ids: all of a record that is neither weight nor state."""
    index: int
    free: int
    """In pages that were touched, without a record in them."""
    bookkeeping: int
    """Which places are free."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(astuple(self))


class ChunkedStatistics(NamedTuple):
    """What a pool holds now."""

    bytes: ChunkedBytes
    generation: int
    """Slots that were resolved under another are stale."""
    unit_bytes: int
    """Of a slot."""
    rows: tuple[int, ...]
    """With a record, by table."""
    index_forms: tuple[str, ...]
    """By table, of INDEX_FORMS."""
    records: tuple[int, ...]
    """Rows with 0, 1, ... live chunks."""
    row_bytes: tuple[int, ...]
    """What a row with 0, 1, ... live chunks counts as where room is counted."""


class RowsById(Protocol):
    """What holds chunked rows that can be listed and read."""

    def ids(self, table: int, first: int = 0, count: int = 1 << 20) -> Tensor:
        """The lowest ids from `first` on that have a record, at most `count`, rising."""

    def read(self, table: int, ids: Tensor) -> ChunkedBlock:
        """Rows as they are now; each must have a record."""


def blocks_by_id(held: RowsById, table: int, rows: int) -> Iterator[ChunkedBlock]:
    """All rows of a table in the order of ids, at most so many at a time."""
    first, left = 0, torch.empty(0, dtype=torch.int64)
    while True:
        if not len(left):
            left = held.ids(table, first, count=16 * rows)
            if not len(left):
                return
            first = int(left[-1]) + 1
        yield held.read(table, left[:rows])
        left = left[rows:]


class ChunkedRows:
    """Rows of some tables of one shape. Threads may call it at once; kernels only while no row is rewritten.

    `capacity_bytes` are addresses that are reserved, not memory that is taken.
    """

    def __init__(self, tables: Sequence[PooledTable], shape: ChunkShape, capacity_bytes: int) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self.tables, self.shape = tuple(tables), shape
        starts = torch.tensor([table.start.fields(table.rows, table.padding) for table in tables])
        described = torch.tensor(shape.fields())
        handle, pool = ctypes.c_void_p(), ctypes.c_void_p()
        self._core.mg_chunks_create(
            *(described.data_ptr(), capacity_bytes, starts.data_ptr(), len(tables)),
            ctypes.addressof(handle),
        )
        self._handle = handle.value
        self._core.mg_chunks_pool(self._handle, ctypes.addressof(pool))
        self._kernel_address = pool.value
        self.lock = threading.Lock()
        """Held while the pool changes; whoever works with the native pool takes it."""
        self.raw_ids: list[Tensor | None] = [None] * len(tables)
        """By table, which id each row has, int64 [rows]; None where a row is its id."""
        self.ranked_rows = [table.rows for table in tables]
        """By table, the first row of those that compete for nothing."""
        self.generation = 0
        """Grows whenever rows may have moved: slots that were resolved under a smaller one are stale."""
        self.close = weakref.finalize(self, self._core.mg_chunks_destroy, self._handle)
        """Gives the memory back; every use afterwards is refused."""

    @property
    def kernel_address(self) -> int | None:
        """What kernels take for the weights of the pool's tables."""
        return self._kernel_address if self._pool else None

    @property
    def native_handle(self) -> int | None:
        """The pool in the native core, for what ranks its chunks."""
        return self._pool

    def map_rows(self, table: int, raw_ids: Tensor, ranked_rows: int) -> None:
        """Says which ids the rows of a table have: start values and ties depend on them, not on rows.

        Whoever owns `raw_ids`, int64 [rows], may change them for rows without a record. Rows from
        `ranked_rows` on compete for nothing.
        """
        if raw_ids.dtype != torch.int64 or raw_ids.shape != (self.tables[table].rows,):
            raise ValueError("raw ids are int64, one for each row of the table")
        self.raw_ids[table], self.ranked_rows[table] = raw_ids, ranked_rows
        with self.lock:
            self._core.mg_chunks_map_rows(self._pool, table, raw_ids.data_ptr(), ranked_rows)

    def resolve(
        self,
        lookups: Tensor,
        values: Tensor,
        *,
        trains: bool,
        first_chunks: int = 0,
        room: int = 0,
        parallel: bool = True,
    ) -> ResolvedSlots:
        """Slots of the ids of a batch.

        `lookups` are int64 rows (table, first value, last value). If it `trains`, ids without a record are
        numbered, the same ids alike; new rows begin with `first_chunks` in the order of the batch, while they
        take no more than `room` (a row counts as `ChunkedStatistics.row_bytes`). Otherwise all ids without a
        record are FIRST_ABSENT, and none is listed.
        """
        slots = torch.empty(len(values), dtype=torch.int32)
        if not check_lookups(lookups, values, len(self.tables)):
            # Not by torch, whose threads would wait for more work at the cost of those that compute.
            slots.numpy().fill(PADDING_SLOT)
        absent = torch.empty(len(values) if trains else 0, 2, dtype=torch.int64)
        new_rows = (ctypes.c_int64 * 2)(first_chunks if trains else 0, room)
        count = ctypes.c_int64(0)
        with self.lock:
            self._core.mg_chunks_resolve(
                *(self._pool, lookups.data_ptr(), len(lookups), values.data_ptr(), values.element_size()),
                *(slots.data_ptr(), int(trains), new_rows, absent.data_ptr(), ctypes.addressof(count)),
                int(parallel),
            )
        # A copy, so that the room for all of them is given back.
        return ResolvedSlots(slots, absent[: count.value].clone(), new_rows[1])

    def rewrite(
        self,
        table: int,
        ids: Tensor,
        masks: Tensor,
        utilities: Tensor | None = None,
        growth: Tensor | None = None,
    ) -> None:
        """Gives rows other live chunks, int64 ids and masks; mask 0 removes a row.

        Chunks that a row gains begin with start values, full state 0 and `utilities` (float32 [rows], else
        0); a number for the whole row stays, and begins at 0 with the row. `growth`, float32 [rows], replaces
        growth utilities. Rows change in the order given.
        """
        self._check_rows(table, ids, masks)
        numbers = [None if given is None else given.float().contiguous() for given in (utilities, growth)]
        if any(given is not None and given.shape != ids.shape for given in numbers):
            raise ValueError("utilities and growth are a number for each row")
        ids, masks = ids.contiguous(), masks.contiguous()
        given = ids.data_ptr(), masks.data_ptr(), *map(address, numbers), len(ids)
        with self.lock:
            self._core.mg_chunks_rewrite(self._pool, table, *given)
            self.generation += 1

    def compact(self) -> None:
        """Moves records together, gives memory back, and every index its smallest form."""
        with self.lock:
            self._core.mg_chunks_compact(self._pool)
            self.generation += 1

    def scale_utilities(self, factor: float, table: int | None = None) -> None:
        """Multiplies utilities of one table, or of all, growth included; exact for powers of two."""
        if table is not None and not 0 <= table < len(self.tables):
            raise ValueError(f"there is no table {table}")
        with self.lock:
            self._core.mg_chunks_scale_utilities(self._pool, -1 if table is None else table, factor)

    def masks(self, table: int, ids: Tensor) -> Tensor:
        """Which chunks of each row live, int64 [rows]; 0 for a row that is not there."""
        masks = torch.zeros(len(ids), dtype=torch.int64)
        self._check_rows(table, ids, masks)
        ids = ids.contiguous()
        with self.lock:
            self._core.mg_chunks_masks(self._pool, table, ids.data_ptr(), len(ids), masks.data_ptr())
        return masks

    def norms(self, table: int, ids: Tensor) -> Tensor:
        """Of the weights of live chunks, float32, one row after the other; each must have a record."""
        masks = self.masks(table, ids)
        live = (masks[:, None] >> torch.arange(self.shape.chunks)) & 1
        norms, ids = torch.empty(int(live.sum())), ids.contiguous()
        with self.lock:
            self._core.mg_chunks_norms(self._pool, table, ids.data_ptr(), len(ids), norms.data_ptr())
        return norms

    def ids(self, table: int, first: int = 0, count: int = 1 << 20) -> Tensor:
        """The lowest ids from `first` on that have a record, at most `count`, rising."""
        found, ids = ctypes.c_int64(0), torch.empty(min(count, self.tables[table].rows), dtype=torch.int64)
        with self.lock:
            self._core.mg_chunks_ids(
                *(self._pool, table, first, len(ids), ids.data_ptr(), ctypes.addressof(found))
            )
        return ids[: found.value].clone()

    def blocks(self, table: int, rows: int = 1 << 16) -> Iterator[ChunkedBlock]:
        """All rows of a table in the order of ids, at most so many at a time."""
        return blocks_by_id(self, table, rows)

    def held_blocks(self, table: int) -> Iterable[ChunkedBlock]:
        """The same as they are now, copied."""
        return tuple(self.blocks(table))

    def read(self, table: int, ids: Tensor) -> ChunkedBlock:
        """Rows as they are now; each must have a record."""
        masks = self.masks(table, ids)
        block = self._empty_block(ids.contiguous(), masks)
        with self.lock:
            self._core.mg_chunks_read(self._pool, table, *self._addresses(block))
        return block

    def load(self, table: int, block: ChunkedBlock) -> None:
        """Takes rows as they are given, whatever was there before; mask 0 removes a row."""
        self._check_rows(table, block.ids, block.masks)
        block = ChunkedBlock(*(part.contiguous() for part in block))
        for name, given, own in zip(
            block._fields, block, self._empty_block(block.ids, block.masks), strict=True
        ):
            if given.dtype != own.dtype or given.shape != own.shape:
                raise ValueError(
                    f"{name} of chunked rows are {own.dtype} {tuple(own.shape)}, not {given.dtype} "
                    f"{tuple(given.shape)}"
                )
        with self.lock:
            self._core.mg_chunks_load(self._pool, table, *self._addresses(block))
            self.generation += 1

    def statistics(self) -> ChunkedStatistics:
        """What the pool holds and takes now."""
        tables, chunks = len(self.tables), self.shape.chunks
        parts = len(fields(ChunkedBytes))
        numbers = (ctypes.c_int64 * (parts + 2 + 2 * tables + 2 * chunks + 1))()
        with self.lock:
            self._core.mg_chunks_statistics(self._pool, numbers)
        first = parts + 2
        by_table, by_live = numbers[first : first + 2 * tables], numbers[first + 2 * tables :]
        return ChunkedStatistics(
            ChunkedBytes(*numbers[:parts]),
            generation=numbers[parts],
            unit_bytes=numbers[parts + 1],
            rows=tuple(by_table[::2]),
            index_forms=tuple(INDEX_FORMS[form] for form in by_table[1::2]),
            records=(0, *by_live[:chunks]),
            row_bytes=tuple(by_live[chunks:]),
        )

    @property
    def _pool(self) -> int | None:
        """The native pool; its memory is gone once it is closed."""
        if not self.close.alive:
            raise ValueError("this pool of chunked rows is closed")
        return self._handle

    def _empty_block(self, ids: Tensor, masks: Tensor) -> ChunkedBlock:
        shape, rows = self.shape, len(ids)
        bits = (masks[:, None] >> torch.arange(shape.chunks)) & 1
        live = int(bits.sum())
        numbers = {"none": 0, "row": rows, "full": live * shape.width}
        states = (torch.empty(numbers[state]) for state in (shape.first_state, shape.second_state))
        return ChunkedBlock(
            *(ids, masks, torch.empty(rows, dtype=torch.bfloat16), torch.empty(live, dtype=torch.bfloat16)),
            torch.empty(live * shape.width, dtype=shape.dtype),
            *states,
        )

    def _addresses(self, block: ChunkedBlock) -> list[int | None]:
        ids, *parts = (part.data_ptr() if part.numel() else None for part in block)
        return [ids, len(block.ids), *parts]

    def _check_rows(self, table: int, ids: Tensor, masks: Tensor) -> None:
        if not 0 <= table < len(self.tables):
            raise ValueError(f"there is no table {table}")
        if (
            ids.dtype != torch.int64
            or masks.dtype != torch.int64
            or ids.dim() != 1
            or ids.shape != masks.shape
        ):
            raise ValueError("ids and masks are int64 [rows]")
