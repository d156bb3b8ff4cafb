"""Raw 64-bit ids to rows of bounded tables, which come and go, by the native core.

    rows, new, evicted = ids.resolve(lookups, values, batch=7, trains=True)
    ... the inner store resolves `rows`, start values go into new.rows ...

A row number is slot * owned + partition, where `owned` partitions are here: rows [0, rows_of_partitions) are
all in use, and a larger bound adds rows at the end. `id_map_twin.py` says in plain Python what is decided.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.ops import native
from megalith.ops.ids.changes import EvictedIds, IdBlock, IdRows, IdStatistics, MovedIdRows, NewIdRows
from megalith.ops.ids.policies import COUNTER_BUCKET_BYTES, PARTITIONS, IdTableSpec, check_bound
from megalith.ops.tensors import check_lookups, outside

ADMISSIONS = ("always", "count", "probability")
_MOST_BATCHES = 2**32 - 1


class IdMap:
    """The ids of some tables that have a row, in [first, last) of their 64 partitions.

    A row that this batch or one of the `lag` before it uses cannot leave: with a lag of at least the depth of
    the pipeline, results do not depend on that depth. Where no row can leave, an id is not admitted this
    time. `threads` work on partitions side by side (0: as many as torch has); the result is the same. Threads
    may call it at once; batches come in order.
    """

    def __init__(
        self,
        tables: Sequence[IdTableSpec],
        lag: int = 0,
        partitions: tuple[int, int] = (0, PARTITIONS),
        threads: int = 1,
    ) -> None:
        first, last = partitions
        if not 0 <= first < last <= PARTITIONS:
            raise ConfigError(
                f"Partitions {first} to {last} are not possible; use some of 0 to {PARTITIONS}."
            )
        if lag < 0 or threads < 0:
            raise ConfigError(
                f"A map of ids with lag {lag} and {threads} threads is not possible; use 0 or more."
            )
        native.share_torch_threads()
        self._core = native.library()
        self.tables, self.lag, self.partitions = list(tables), lag, (first, last)
        settings = np.array([first, last, lag, threads], dtype=np.int64)
        fields = np.array([_fields(table) for table in tables], dtype=np.int64).reshape(len(tables), -1)
        handle = ctypes.c_void_p()
        self._core.mg_ids_create(
            settings.ctypes.data, fields.ctypes.data, len(tables), ctypes.addressof(handle)
        )
        self._handle = handle.value
        self._is_timed = any(table.timed for table in tables)
        self._clock_moves = any(table.eviction.decays for table in tables)
        self._clock_now: tuple[int, np.ndarray, np.ndarray] | None = None
        self.batch = 0
        """The last that trained, or before which ids expired."""
        # What a call changed is asked for in a second one.
        self._lock = threading.Lock()
        self.close = weakref.finalize(self, self._core.mg_ids_destroy, self._handle)
        """Gives memory back; every use afterwards is refused."""

    @property
    def _map(self) -> int | None:
        if not self.close.alive:
            raise ValueError("this map of ids is closed")
        return self._handle

    def resolve(
        self,
        lookups: Tensor,
        values: Tensor,
        batch: int,
        trains: bool,
        times: Tensor | None = None,
        guesses: Tensor | None = None,
    ) -> IdRows:
        """The rows of a batch's int64 ids; if it `trains`, ids are counted, admitted and evicted.

        `lookups` are int64 rows (table, first value, last value); values outside of all have row -1. `times`,
        int64 [values], are event times in seconds, for tables whose ids expire by them. What is decided
        depends on which ids the batch has and how often, not on their order. An evaluation changes nothing.

        `guesses`, int32 [values], are rows that the values had at an earlier call, or -1: those that still
        are theirs need no search. They become the rows.
        """
        check_lookups(lookups, values, len(self.tables), (torch.int64,))
        times = self._checked_times(times, len(values)) if trains else None
        weights, segments = self._clock(batch)
        rows = np.full(len(values), -1, dtype=np.int32) if guesses is None else guesses.numpy()
        if rows.shape != values.shape or rows.dtype != np.int32:
            raise ValueError("guesses are int32 [values]")
        counts = (ctypes.c_int64 * 3)()
        with self._lock:
            self._core.mg_ids_resolve(
                *(self._map, lookups.data_ptr(), len(lookups), values.data_ptr()),
                *(None if times is None else times.data_ptr(), len(values)),
                *(weights.ctypes.data, segments.ctypes.data, batch, int(trains)),
                *(rows.ctypes.data, ctypes.addressof(counts)),
            )
            if trains:
                self.batch = batch
            new, evicted, _ = self._changes(counts)
        return IdRows(torch.from_numpy(rows), new, evicted)

    def expire(self, batch: int, time: int = 0) -> EvictedIds:
        """Lets go of ids as the tables' `expiry` says, before a batch is resolved, `time` being now.

        Rows that the `lag` batches before it use stay.
        """
        weights, segments = self._clock(batch)
        clocks = [table.eviction.score_clock(batch) for table in self.tables]
        both = zip(self.tables, clocks, strict=True)
        least = np.array([table.expiry.least_score(clock) for table, clock in both], dtype=np.float64)
        counts = (ctypes.c_int64 * 3)()
        with self._lock:
            self._core.mg_ids_expire(
                *(self._map, batch, time, weights.ctypes.data, segments.ctypes.data, least.ctypes.data),
                ctypes.addressof(counts),
            )
            self.batch = batch
            return self._changes(counts)[1]

    def change_bound(self, table: int, bound: int) -> tuple[EvictedIds, MovedIdRows]:
        """Gives a table more rows or fewer, between batches: what leaves leaves by the policy.

        Rows whose number is beyond a smaller bound move; the caller copies them.
        """
        check_bound(bound)
        self._check_table(table)
        counts = (ctypes.c_int64 * 3)()
        with self._lock:
            self._core.mg_ids_change_bound(self._map, table, bound, ctypes.addressof(counts))
            self.tables[table] = replace(self.tables[table], bound=bound)
            return self._changes(counts)[1:]

    def scan(self, table: int, block: int = 1 << 18) -> Iterator[IdBlock]:
        """All ids of a table in rising order, at most `block` at a time."""
        self._check_table(table)
        after: ctypes.c_int64 | None = None
        while True:
            out = _empty_block(block)
            count = ctypes.c_int64(0)
            with self._lock:
                self._core.mg_ids_scan(
                    *(self._map, table, None if after is None else ctypes.addressof(after), block),
                    *(part.data_ptr() for part in out),
                    ctypes.addressof(count),
                )
            if count.value:
                yield IdBlock(*(part[: count.value].clone() for part in out))
            if count.value < block:
                return
            after = ctypes.c_int64(int(out.ids[count.value - 1]))

    def load(self, table: int, block: IdBlock) -> tuple[Tensor, EvictedIds]:
        """Takes ids as they were saved or imported; their rows, int32, and ids that left for them.

        Ids of partitions that are not here, and ids that all rows of a full partition outrank, have row -1;
        so the order of blocks does not matter to what stays. Call `resume` first. Where the policy has
        changed, scores want its `score_factor`.
        """
        self._check_table(table)
        given = IdBlock(
            block.ids.to(torch.int64).contiguous(),
            torch.empty(len(block.ids), dtype=torch.int32),
            block.last.to(torch.int64).clamp(1, _MOST_BATCHES).contiguous(),
            block.scores.to(torch.float32).contiguous() + 0.0,  # no zero with a sign: bits are compared
            block.times.to(torch.int64).contiguous(),
        )
        if len({len(part) for part in given}) != 1:
            raise ValueError("a block has as many ids as batches, scores and times")
        if not bool((given.scores >= 0).all()) or not bool(given.scores.isfinite().all()):
            raise DataError("Scores of ids are finite and not below 0; fix those that are loaded.")
        self._checked_times(given.times, len(given.ids))
        counts = (ctypes.c_int64 * 3)()
        with self._lock:
            self._core.mg_ids_load(
                *(self._map, table, *(part.data_ptr() for part in given), len(given.ids)),
                ctypes.addressof(counts),
            )
            return given.rows, self._changes(counts)[1]

    def resume(self, batch: int) -> None:
        """Goes on after `batch` of a map that was saved: what is loaded next has scores of that time."""
        with self._lock:
            self._core.mg_ids_resume(self._map, batch, self._clock(batch)[1].ctypes.data)
            self.batch = batch

    def clear(self, table: int) -> None:
        """Forgets all ids of a table, what was counted of ids without a row, and its statistics."""
        self._check_table(table)
        with self._lock:
            self._core.mg_ids_clear(self._map, table)

    def counter(self, table: int) -> Tensor:
        """What is counted of ids without a row: uint8 [partitions here, bytes]."""
        state = torch.empty(self._counter_shape(table), dtype=torch.uint8)
        self._core.mg_ids_counter(self._map, table, state.data_ptr(), state.numel(), 0)
        return state

    def load_counter(self, table: int, state: Tensor) -> None:
        """Takes what was counted, with the same `counter_bytes`: hashed ids cannot move to other buckets."""
        if state.shape != self._counter_shape(table) or state.dtype != torch.uint8:
            raise ValueError(f"a counter of table {table} is uint8 {self._counter_shape(table)}")
        state = state.contiguous()
        self._core.mg_ids_counter(self._map, table, state.data_ptr(), state.numel(), 1)

    def statistics(self, table: int) -> IdStatistics:
        """What was counted of a table so far."""
        self._check_table(table)
        counts = (ctypes.c_int64 * len(IdStatistics._fields))()
        self._core.mg_ids_statistics(self._map, table, counts)
        return IdStatistics(*counts)

    def bytes(self) -> dict[str, int]:
        """Memory by part: index, uses (what is kept by row), queue (what leaves next), counter, scratch.

        Within 5% of what a process grows by for it, once it is some megabytes.
        """
        every = [self.statistics(table) for table in range(len(self.tables))]
        parts = {
            "index": "index_bytes",
            "uses": "use_bytes",
            "queue": "queue_bytes",
            "counter": "counter_bytes",
        }
        scratch = ctypes.c_int64(0)
        self._core.mg_ids_scratch_bytes(self._map, ctypes.addressof(scratch))
        summed = {part: sum(getattr(own, name) for own in every) for part, name in parts.items()}
        return {**summed, "scratch": scratch.value}

    def _clock(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= batch <= _MOST_BATCHES:
            raise ValueError(f"batch {batch} is not a number from 0 to {_MOST_BATCHES}")
        # Threads ask for different batches at once: each gets what it has seen or made itself.
        known = self._clock_now
        if known is None or (self._clock_moves and known[0] != batch):
            clocks = [table.eviction.score_clock(batch) for table in self.tables]
            weights = np.array([clock.weight for clock in clocks], dtype=np.float64)
            segments = np.array([clock.segment for clock in clocks], dtype=np.int64)
            self._clock_now = known = batch, weights, segments
        return known[1:]

    def _changes(self, counts: ctypes.Array[ctypes.c_int64]) -> tuple[NewIdRows, EvictedIds, MovedIdRows]:
        """Asks what the last call changed."""
        listed = [
            np.empty((count, width), dtype=np.int64) for count, width in zip(counts, (3, 4, 4), strict=True)
        ]
        if any(counts):
            self._core.mg_ids_changes(self._map, *(rows.ctypes.data for rows in listed))
        new, left, moved = (torch.from_numpy(np.ascontiguousarray(rows.T)).unbind() for rows in listed)
        return NewIdRows(*new), EvictedIds(*left), MovedIdRows(*moved)

    def _counter_shape(self, table: int) -> tuple[int, int]:
        self._check_table(table)
        first, last = self.partitions
        return last - first, self.tables[table].admission.counter_buckets * COUNTER_BUCKET_BYTES

    def _check_table(self, table: int) -> None:
        if not 0 <= table < len(self.tables):
            raise ValueError(f"table {table} is not one of {len(self.tables)}")

    def _checked_times(self, times: Tensor | None, values: int) -> Tensor | None:
        """Event times in one piece, where a table wants them."""
        if not self._is_timed:
            return None
        if times is None:
            raise DataError("Ids expire by event time; give the time of each value, or leave `seconds` out.")
        if times.dtype != torch.int64 or times.shape != (values,):
            raise ValueError("times are int64 [values]")
        if outside(times, 2**32):
            raise DataError(
                "Event times are seconds since 1970, from 0 to 4294967295; fix those of this batch."
            )
        return times.contiguous()


def _fields(table: IdTableSpec) -> list[int]:
    """A table as csrc/ids/id_partition.h has it (IdTableSettings)."""
    expiry = table.expiry
    limit = table.admission.limit
    return [
        *(table.bound, ADMISSIONS.index(table.admission.kind), table.admission.count),
        *(_signed(limit), _signed(table.seed), table.admission.counter_buckets, int(table.eviction.by_score)),
        *(expiry.batches or 0, expiry.seconds or 0, int(table.timed)),
    ]


def _signed(number: int) -> int:
    """The same 64 bits as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


def _empty_block(count: int) -> IdBlock:
    kinds = (torch.int64, torch.int32, torch.int64, torch.float32, torch.int64)
    return IdBlock(*(torch.empty(count, dtype=kind) for kind in kinds))
