"""Which rows a rank reads in an epoch, and in which order, without reading any of them.

An epoch is the row groups of all files, in file order or shuffled, cut into windows of whole row groups. Each
rank takes a contiguous share of every window and shuffles the rows of its share. The plan is a function of
(files, seed, epoch, rank, world size, window rows) alone, so any position in it can be found without decoding
what comes before, and threads cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file."""

    file: int
    index: int
    first_row: int
    """The row of the file with which the group begins."""
    rows: int


@dataclass(frozen=True, slots=True)
class RowGroupSlice:
    """Rows [start, stop) of a row group."""

    group: RowGroup
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Rows of the slice."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ShuffleWindow:
    """What is decoded and shuffled as one: this rank's share of some row groups."""

    epoch: int
    index: int
    first_row: int
    """Rows that this rank has read in the epoch before the window."""
    rows: int
    parts: tuple[RowGroupSlice, ...]


@dataclass(frozen=True, slots=True)
class RowSharding:
    """How rows are spread over ranks and windows."""

    rank: int
    world_size: int
    window_rows: int
    """Rows of a window on each rank; at least one row group, whatever its size."""
    shuffle: bool
    seed: int


def rank_rows(rows: int, rank: int, world_size: int) -> int:
    """Rows that `rank` reads of the first `rows`: an even share, the rest going to the lowest ranks.

    >>> [rank_rows(11, rank, 4) for rank in range(4)]
    [3, 3, 3, 2]
    """
    return (rows - rank + world_size - 1) // world_size


def even_slice(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous part of `rows` that is `rank`'s: parts differ by one row at most, the first are larger.

    >>> [even_slice(11, rank, 4) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 11)]
    """
    size, larger = divmod(rows, world_size)
    start = rank * size + min(rank, larger)
    return start, start + size + (rank < larger)


def plan_epoch(groups: Sequence[RowGroup], sharding: RowSharding, epoch: int) -> list[ShuffleWindow]:
    """The windows of one rank and epoch, in the order in which they are read; empty shares are left out."""
    ordered = _ordered(groups, sharding, epoch)
    rank, world_size = sharding.rank, sharding.world_size
    largest = max((group.rows for group in groups), default=1)
    # A multiple of the world size: row groups of one size then fall to one rank each, none decoded twice.
    groups_per_window = world_size * max(1, sharding.window_rows // max(largest, 1))
    windows: list[ShuffleWindow] = []
    begin = 0
    for first in range(0, len(ordered), groups_per_window):
        members = ordered[first : first + groups_per_window]
        if sharding.shuffle:
            # The rows are about to be shuffled, so the files may be read in their own order.
            members.sort(key=lambda group: (group.file, group.index))
        end = begin + sum(group.rows for group in members)
        counts = [
            rank_rows(end, member, world_size) - rank_rows(begin, member, world_size)
            for member in range(rank + 1)
        ]
        if counts[rank]:
            parts = _slice(members, sum(counts[:rank]), counts[rank])
            before = rank_rows(begin, rank, world_size)
            windows.append(ShuffleWindow(epoch, first // groups_per_window, before, counts[rank], parts))
        begin = end
    return windows


def row_order(window: ShuffleWindow, sharding: RowSharding) -> npt.NDArray[np.int64] | None:
    """The shuffled order of a window's rows, or None where rows keep their order."""
    if not sharding.shuffle:
        return None
    return _generator(sharding.seed, window.epoch, 1, window.index, sharding.rank).permutation(window.rows)


def _ordered(groups: Sequence[RowGroup], sharding: RowSharding, epoch: int) -> list[RowGroup]:
    if not sharding.shuffle:
        return list(groups)
    return [groups[i] for i in _generator(sharding.seed, epoch, 0, 0, 0).permutation(len(groups))]


def _generator(*key: int) -> np.random.Generator:
    """A generator of its own for each key; keys all have one length, since trailing zeros do not count."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def _slice(groups: Sequence[RowGroup], start: int, count: int) -> tuple[RowGroupSlice, ...]:
    """Rows [start, start + count) of the groups laid end to end."""
    parts = []
    begin = 0
    for group in groups:
        low, high = max(start - begin, 0), min(start + count - begin, group.rows)
        if low < high:
            parts.append(RowGroupSlice(group, low, high))
        begin += group.rows
    return tuple(parts)
