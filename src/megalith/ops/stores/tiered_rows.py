"""A pool of rows in memory over rows in segment files, by the native core.

    pool.resolve(lookups, values, batch=7, trains=True)   # slots; what was missing is read, or begun
    pool.arrive(7)                                         # waits for it
    ... kernels run over pool.parts[0][slot] ...
    pool.release(7)                                        # its rows may leave

All tables of a pool have rows of one shape. Rows are written when they leave and training changed them; a row
that was never trained is nowhere but in its start value. `flush` puts everything on disk and says which files
and records hold it; `open` takes these up again.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.stores.start_values import StartValues
from megalith.ops.tensors import address, check_lookups, outside

WAYS = 16
"""Slots of a set of the cache."""
_LEAST_SET_ROWS = 1 << 15
"""A cache of fewer rows may be filled by one batch."""
POLICIES = ("lru", "lfu", "lookahead")
_NAME_BYTES = 22


@dataclass(frozen=True)
class PooledTable:
    """A table of a pool."""

    rows: int
    start: StartValues
    padding: int = -1
    """An id that reads as zeros and is never trained."""


@dataclass(frozen=True)
class DiskSettings:
    """How the rows of a pool lie on disk, and how they are moved."""

    folder: Path
    layout: int = 0
    """A digest of tables, dims, types and optimizer state: files of another one are refused."""
    segment_bytes: int = 16 << 20
    max_bytes: int = 0
    """Of all files together, with those that are no longer the pool's but linked elsewhere; 0 is no bound."""
    engine: Literal["io_uring", "threads"] = "io_uring"
    """io_uring gives way to threads where the system refuses it."""
    depth: int = 256
    threads: int = 32
    space_percent: int = 142
    """Files may take so much of the rows' bytes before segments are collected."""


def segment_bytes_for(declared_bytes: int) -> int:
    """Bytes of a segment for tables whose rows, all of them, take so many.

    Some segments are on their way at any time, whatever the size of the tables: they should be a small part
    of the files. Larger ones than 16 MiB would not be written faster.

    >>> segment_bytes_for(100 << 30) >> 20, segment_bytes_for(3 << 29) >> 20, segment_bytes_for(1000) >> 10
    (16, 4, 256)
    """
    share = max(1, declared_bytes // 256)
    return min(16 << 20, max(1 << 18, 1 << (share.bit_length() - 1)))


class SegmentRecords(NamedTuple):
    """A segment file and the records of it that hold rows."""

    name: str
    live: npt.NDArray[np.uint64]
    """64 records a word, the lowest bit first."""


class PoolStatistics(NamedTuple):
    """Counts since the pool was made, and what it holds now."""

    lookups: int
    hits: int
    read_rows: int
    new_rows: int
    evicted_rows: int
    written_back_rows: int
    file_bytes: int
    live_rows: int
    dead_rows: int
    segments: int
    written_bytes: int
    appended_rows: int
    moved_rows: int
    read_bytes: int
    reads: int
    present_rows: int
    dirty_rows: int
    index_bytes: int
    directory_bytes: int
    buffer_bytes: int


class TieredRows:
    """Rows of some tables, of which `capacity` are in memory.

    `parts` are the pool's tensors, the weight first: [capacity + 1, ...] each; the last slot reads as zeros
    and stands for padding. They must not be replaced or resized. Threads may call it at once.
    `slot_ids`, int64 [capacity + 1], is kept by the pool: the id, within its table, of the row in each slot,
    -1 where there is none.
    """

    def __init__(
        self,
        tables: Sequence[PooledTable],
        parts: Sequence[Tensor],
        disk: DiskSettings,
        policy: str = "lru",
        overflow: int | None = None,
        slot_ids: Tensor | None = None,
    ) -> None:
        native.share_torch_threads()
        self._core = native.library()
        self.tables, self.parts, self.disk = tuple(tables), tuple(parts), disk
        self.capacity = len(parts[0]) - 1
        if slot_ids is not None and (
            slot_ids.dtype != torch.int64
            or slot_ids.shape != (self.capacity + 1,)
            or not slot_ids.is_contiguous()
        ):
            raise ValueError("slot_ids are contiguous int64 [capacity + 1]")
        self.slot_ids = slot_ids
        self._part_bytes = [part[0].numel() * part.element_size() for part in parts]
        sets = _num_sets(self.capacity, sum(table.rows for table in tables), overflow)
        settings = torch.tensor(
            [
                *(sets, self.capacity, POLICIES.index(policy), disk.segment_bytes, disk.max_bytes),
                *(disk.layout, int(disk.engine == "io_uring"), disk.depth, disk.threads, disk.space_percent),
            ]
        )
        fields = torch.tensor([table.start.fields(table.rows, table.padding) for table in tables])
        part_bytes = torch.tensor(self._part_bytes)
        addresses = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
        handle = ctypes.c_void_p()
        self._core.mg_tiered_create(
            *(settings.data_ptr(), os.fsencode(disk.folder), fields.data_ptr(), len(tables)),
            *(addresses, part_bytes.data_ptr(), len(parts), address(slot_ids), ctypes.addressof(handle)),
        )
        self._handle = handle.value
        # A pipeline resolves while a checkpoint is made; whoever releases does not wait.
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, self._core.mg_tiered_destroy, self._handle)
        """Gives memory and files back; every use afterwards is refused."""

    @property
    def _pool(self) -> int | None:
        """The native pool; its memory is gone once it is closed."""
        if not self.close.alive:
            raise ValueError("this pool of rows is closed")
        return self._handle

    @property
    def padding_slot(self) -> int:
        """The slot that reads as zeros."""
        return self.capacity

    def resolve(self, lookups: Tensor, values: Tensor, batch: int, trains: bool) -> Tensor:
        """Slots int32 [values] of the ids of a batch, in memory from `arrive` until the batch is released.

        `lookups` are int64 rows (table, first value, last value); values outside of all keep slot -1.
        Batches are numbered from 1 and resolved in order. A row that `trains` counts as changed. For a row
        that is only read no changed one leaves, unless nothing else can: evaluation does not write.
        """
        check_lookups(lookups, values, len(self.tables))
        # Not by torch, whose threads would wait for more work at the cost of those that compute.
        slots = torch.from_numpy(np.full(len(values), -1, dtype=np.int32))
        with self._lock:
            self._core.mg_tiered_resolve(
                *(self._pool, lookups.data_ptr(), len(lookups), values.data_ptr(), values.element_size()),
                *(slots.data_ptr(), batch, int(trains)),
            )
        return slots

    def expect(self, lookups: Tensor, values: Tensor, batch: int) -> None:
        """Says that a batch yet to be resolved uses these ids: policy "lookahead" keeps their rows."""
        check_lookups(lookups, values, len(self.tables))
        given = lookups.data_ptr(), len(lookups), values.data_ptr(), values.element_size()
        with self._lock:
            self._core.mg_tiered_expect(self._pool, *given, batch)

    def arrive(self, batch: int) -> None:
        """Waits until the rows of batches up to this one are in memory; others may resolve meanwhile."""
        self._core.mg_tiered_arrive(self._pool, batch)

    def release(self, batch: int) -> None:
        """Batches up to this one are computed: their rows may leave."""
        self._core.mg_tiered_release(self._pool, batch)

    def flush(self) -> list[SegmentRecords]:
        """Writes what changed and waits for the disk; the files that hold every row that was ever trained.

        Rows of batches that are not released yet are written as they are, and again when they leave.
        """
        counts = (ctypes.c_int64 * 2)()
        with self._lock:
            self._core.mg_tiered_flush(self._pool, ctypes.addressof(counts), ctypes.addressof(counts) + 8)
            num_files, num_words = counts
            names = ctypes.create_string_buffer(max(1, num_files * _NAME_BYTES))
            words = np.zeros(max(1, num_files), dtype=np.int64)
            live = np.zeros(max(1, num_words), dtype=np.uint64)
            self._core.mg_tiered_files(self._pool, names, words.ctypes.data, live.ctypes.data)
        held = names.raw[: num_files * _NAME_BYTES].decode().split("\0")
        return [
            SegmentRecords(name, own)
            for name, own in zip(held, np.split(live, words[:num_files].cumsum()), strict=False)
            if name
        ]

    def open(self, files: Sequence[SegmentRecords]) -> None:
        """Takes up the files of a pool that was flushed; only before the first batch."""
        names = b"".join(file.name.encode().ljust(_NAME_BYTES, b"\0")[:_NAME_BYTES] for file in files)
        words = [np.asarray(file.live, dtype=np.uint64) for file in files]
        counts = np.array([len(own) for own in words], dtype=np.int64)
        live = np.concatenate([np.zeros(0, dtype=np.uint64), *words])
        with self._lock:
            self._core.mg_tiered_open(self._pool, names, counts.ctypes.data, live.ctypes.data, len(files))

    def keep(self, paths: Iterable[Path]) -> None:
        """Counts files against `DiskSettings.max_bytes` that are not the pool's, until they are deleted."""
        with self._lock:
            for path in paths:
                self._core.mg_tiered_keep(self._pool, os.fsencode(path))

    def load(self, table: int, ids: Tensor, parts: Sequence[Tensor]) -> None:
        """Takes rows as they are given, int64 ids and a tensor for each part."""
        for given, own in zip(parts, self.parts, strict=True):
            if given.dtype != own.dtype or given.shape != (len(ids), *own.shape[1:]):
                raise ValueError(f"rows of {given.dtype} {tuple(given.shape)} do not fit into {own.dtype}")
        self._check_ids(table, ids)
        kept = [part.contiguous() for part in parts]
        addresses = (ctypes.c_void_p * len(kept))(*(part.data_ptr() for part in kept))
        ids = ids.contiguous()
        with self._lock:
            self._core.mg_tiered_load(self._pool, table, ids.data_ptr(), len(ids), addresses)

    def drop(self, table: int, ids: Tensor) -> None:
        """Forgets rows that are on disk alone: they are as they begin, and their room is free."""
        self._check_ids(table, ids)
        ids = ids.contiguous()
        with self._lock:
            self._core.mg_tiered_drop(self._pool, table, ids.data_ptr(), len(ids))

    def read(self, table: int, ids: Tensor) -> list[Tensor]:
        """The rows of some ids as they are now, a tensor for each part; nothing moves for it."""
        self._check_ids(table, ids)
        ids = ids.contiguous()
        parts = [torch.empty(len(ids), *part.shape[1:], dtype=part.dtype) for part in self.parts]
        addresses = (ctypes.c_void_p * len(parts))(*(part.data_ptr() for part in parts))
        with self._lock:
            self._core.mg_tiered_read(self._pool, table, ids.data_ptr(), len(ids), addresses)
        return parts

    def rows(self) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
        """(table, rising ids, parts) of the rows on disk, a segment at a time; after `flush` of all rows."""
        row_bytes = sum(self._part_bytes)
        most = self.disk.segment_bytes // row_bytes + 1
        tables, ids = torch.empty(most, dtype=torch.int64), torch.empty(most, dtype=torch.int64)
        rows = torch.empty(most, row_bytes, dtype=torch.uint8)
        count, segment = ctypes.c_int64(0), 0
        while True:
            with self._lock:
                self._core.mg_tiered_scan(
                    *(self._pool, segment, tables.data_ptr(), ids.data_ptr(), rows.data_ptr(), row_bytes),
                    ctypes.addressof(count),
                )
            if count.value < 0:
                return
            segment += 1
            held = tables[: count.value].numpy()
            order = np.lexsort((ids[: count.value].numpy(), held))
            ends = np.flatnonzero(np.diff(held[order])) + 1
            for positions in map(torch.from_numpy, np.split(order, ends) if len(order) else ()):
                yield int(tables[positions[0]]), ids[positions], self._split(rows[positions])

    def statistics(self) -> PoolStatistics:
        """What was counted so far."""
        counts = (ctypes.c_int64 * len(PoolStatistics._fields))()
        with self._lock:
            self._core.mg_tiered_statistics(self._pool, counts)
        return PoolStatistics(*counts)

    def _check_ids(self, table: int, ids: Tensor) -> None:
        known = 0 <= table < len(self.tables)
        if not known or ids.dtype != torch.int64 or ids.dim() != 1 or outside(ids, self.tables[table].rows):
            raise ValueError(f"ids of table {table} are int64 and below its number of rows")

    def _split(self, rows: Tensor) -> list[Tensor]:
        """Rows of bytes as the parts they are made of."""
        split = [
            piece.clone(memory_format=torch.contiguous_format)
            for piece in rows.split(self._part_bytes, dim=1)
        ]
        return [
            piece.view(part.dtype).reshape(len(rows), *part.shape[1:])
            for piece, part in zip(split, self.parts, strict=True)
        ]


def _num_sets(capacity: int, rows: int, overflow: int | None) -> int:
    """Sets of the cache, beside an overflow area; none where the cache is small, which then is all overflow.

    An area of a sixteenth takes what sets cannot hold even if the rows of batches under way fill nine tenths
    of the cache.
    """
    if overflow is None:
        overflow = capacity if capacity < _LEAST_SET_ROWS else capacity // 16
    sets = (capacity - overflow) // WAYS
    # Set and tag together are the key, of at most 40 bits, and a tag has 32.
    return sets if sets > max(1, rows >> 31) else 0
