"""`RowSnapshot`: rows as they were at one instant, read by another thread while training goes on.

    snapshot = RowSnapshot(shard, chosen, copies)      # the thread that trains, between two steps
    touched.hold(snapshot)                             # from now on told which rows are about to change
    for block in snapshot.blocks(16 << 20): ...        # another thread, to the end
    touched.release(snapshot)

The reader goes through the rows in order. The trainer copies a row before the first step that changes it, if
the reader has not come to it yet: with skewed ids that is a small share of all. So training is held up by
these copies alone, and memory holds no second set of rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megalith.embeddings.row_block import RowBlock, kept_parts
from megalith.embeddings.stores.dense_shard import DenseShard

_LOCKED_BYTES = 1 << 18
"""As much is read while the trainer is kept from copying."""


class CopiedBytes:
    """What trainers' copies take, of all snapshots of a checkpoint."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes, self._is_closed = max_bytes, 0, False
        self._changed = threading.Condition()
        self.peak_bytes = 0
        """The most that there was at once."""

    def add(self, size: int) -> None:
        """So much was copied."""
        with self._changed:
            self._bytes += size
            self.peak_bytes = max(self.peak_bytes, self._bytes)

    def free(self, size: int) -> None:
        """So much is needed no more."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Returns when copies are within the bound again, or nobody reads them any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._bytes <= self._max_bytes)

    def close(self) -> None:
        """Nobody reads copies any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class _Copies(NamedTuple):
    """Rows that the trainer copied before a step."""

    positions: Tensor
    """Rising."""
    parts: dict[str, Tensor]


class RowSnapshot:
    """Some rows of a rectangle in memory, or all, as they are when it is made."""

    def __init__(self, shard: DenseShard, chosen: Tensor | None, copies: CopiedBytes) -> None:
        """`chosen` are positions in the rectangle, rising; None takes all."""
        self._shard, self._chosen, self._all_copies = shard, chosen, copies
        rows = shard.rows[1] - shard.rows[0]
        # Of numpy, which takes a third of torch's time for the few ids of a batch.
        self._pending: NDArray[np.bool_] = np.full(rows, chosen is None)
        if chosen is not None:
            self._pending[chosen.numpy()] = True
        self.rows = rows if chosen is None else len(chosen)
        """How many are read."""
        self._parts = {name: shard.parts[name] for name in kept_parts(shard.specs, shard.columns[0])}
        self._copies: list[_Copies] = []
        self._copied_bytes = 0
        self._lock, self._ended = threading.Lock(), threading.Event()

    def before(self, positions: Tensor) -> None:
        """Rows are about to change: copies those that were not read yet. For the thread that trains."""
        ids = positions.cpu().numpy()
        # Without the lock: what is read or copied already stays so.
        wanted = self._pending[ids]
        if not wanted.any():
            return
        with self._lock:
            ids = np.unique(ids[wanted])
            ids = ids[self._pending[ids]]
            if not len(ids):
                return
            self._pending[ids] = False
            mine = torch.from_numpy(ids).long()
            parts = {name: part[mine] for name, part in self._parts.items()}
            self._copies.append(_Copies(mine, parts))
            size = sum(part.numel() * part.element_size() for part in (mine, *parts.values()))
            self._copied_bytes += size
            self._all_copies.add(size)
        self._all_copies.wait_for_room()

    def wait(self) -> None:
        """Returns when all rows were read, or nobody reads them any more."""
        self._ended.wait()

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """All rows, rising, in blocks of their own; for one other thread, once."""
        try:
            yield from self._blocks(max_bytes)
        finally:
            self.close()

    def close(self) -> None:
        """Nobody reads it any more; copies are let go."""
        with self._lock:
            self._pending[:] = False
            self._copies.clear()
            size, self._copied_bytes = self._copied_bytes, 0
        self._all_copies.free(size)
        self._ended.set()

    def _blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        first_row = self._shard.rows[0]
        count = self.rows
        row_bytes = sum(part[:1].numel() * part.element_size() for part in self._parts.values())
        if not row_bytes:
            return
        step, locked = (max(1, size // row_bytes) for size in (max_bytes, _LOCKED_BYTES))
        for begin in range(0, count, step):
            end = min(begin + step, count)
            parts = {
                name: torch.empty((end - begin, *part.shape[1:]), dtype=part.dtype)
                for name, part in self._parts.items()
            }
            for at in range(begin, end, locked):
                self._read(
                    at, min(at + locked, end), {name: part[at - begin :] for name, part in parts.items()}
                )
            self._put_copies(begin, end, parts)
            ids: range | Tensor
            if self._chosen is None:
                ids = range(first_row + begin, first_row + end)
            else:
                ids = self._chosen[begin:end] + first_row
            yield RowBlock(ids, self._shard.columns, parts)

    def _read(self, begin: int, end: int, into: dict[str, Tensor]) -> None:
        """Rows number `begin` to `end` of those that are wanted, as they are now."""
        rows = self._rows(begin, end)
        with self._lock:
            for name, part in self._parts.items():
                into[name][: end - begin].copy_(part[rows])
            # When they are read: who sees that a row is not pending may change it.
            self._pending[rows if isinstance(rows, slice) else rows.numpy()] = False

    def _put_copies(self, begin: int, end: int, into: dict[str, Tensor]) -> None:
        """Puts in what was copied of rows that were read: these may have changed before."""
        rows = self._rows(begin, end)
        first, last = (begin, end - 1) if isinstance(rows, slice) else (int(rows[0]), int(rows[-1]))
        with self._lock:
            copies = tuple(self._copies)
        for positions, parts in copies:
            low, high = np.searchsorted(positions.numpy(), (first, last + 1)).tolist()
            if low < high:
                own = positions[low:high]
                where = own - begin if isinstance(rows, slice) else torch.searchsorted(rows, own)
                for name, part in parts.items():
                    into[name][where] = part[low:high]

    def _rows(self, begin: int, end: int) -> slice | Tensor:
        return slice(begin, end) if self._chosen is None else self._chosen[begin:end]
