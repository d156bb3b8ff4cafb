"""`Ranking`: which chunks of a pool live, when all that may live compete for a number of bytes.

    ranking = Ranking(pool, sketch, RankingSettings(), exempt=[False, True])
    norms = ranking.means(added(ranking.sums()))
    scales = ranking.means(added(ranking.score(norms)))
    key = threshold(lambda level, prefix: added(ranking.histogram(scales, level, prefix)), budget)
    ranking.changes(scales, key)             # (pruned, grown, begun, removed, bytes): is it worth it?
    ranking.apply(scales, key)               # or ranking.forget()
    pool.compact()

`added` sums over ranks, histograms and changes also over pools of other shapes; all are integers, so that any
number of ranks decides the same. Rows keep a prefix of their C chunks. With utilities u and norms n of the k
chunks of a row that live, growth utility b, and M the mean of n over the table's live chunks:

    value of a live chunk   u * max(n / M, floor) ** fade
    of any other            b / (C - k) * floor ** fade / hysteresis
    of a candidate's        the same with k = 0 and its utility as b

each at most that of the chunk before it. Chunk j = 0, 1, ... has the score value / (Z * f(j)), where f(j) =
(1 + j * width / columns) ** power, and Z is the mean of values without hysteresis over all chunks of the
table, also of rows that nobody knows. All in float32, in this order. A key is the score's 32 bits and 16 bits
of a hash of (table, id, chunk). Chunks with a key of at least the threshold live; those that do not live and
that nothing asked for, with score 0, do not compete. The twin is in `ranking_twin.py`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops import native
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.ranking_sums import (
    KEY_BITS,
    SUM_NUMBERS,
    RankingSettings,
    fade_sixteenths,
    ranking_means,
)
from megalith.ops.chunks.sketch import CandidateSketch

HISTOGRAM_SIZE = 1 << 16


class RankingChanges(NamedTuple):
    """By how much a threshold changes pools: `RankingChanges(*counts.tolist())`."""

    pruned: int
    """Chunks."""
    grown: int
    """Chunks, with the first ones of rows that begin."""
    begun: int
    """Rows."""
    removed: int
    """Rows."""
    bytes: int
    """That chunks of tables which are not exempt count as afterwards."""


class Ranking:
    """The chunks of a pool and the candidates of its sketch, by score.

    `score` keeps 4 bytes for each live chunk, each row that is not whole and each place of the sketch, until
    `apply` or `forget`. In between nobody may train, add to the sketch or change rows (which is refused).
    """

    def __init__(
        self,
        pool: ChunkedRows,
        sketch: CandidateSketch,
        settings: RankingSettings,
        exempt: Sequence[bool],
        outlines: ChunkedRows | None = None,
    ) -> None:
        """`outlines` has rows that compete though their weights are not here: chunks of one column, the norm
        of the chunk. No row is in both pools, and rows count as in the first."""
        self._core = native.library()
        self._pool, self._sketch, self._outlines = pool, sketch, outlines
        check_tables(pool, sketch, exempt)
        flags = torch.tensor([bool(one) for one in exempt], dtype=torch.uint8)
        numbers, factors = settings.numbers(), settings.factors(pool.shape.chunks, pool.shape.width)
        handle = ctypes.c_void_p()
        self._core.mg_ranking_create(
            *(pool.native_handle, None if outlines is None else outlines.native_handle),
            *(sketch.native_tables.data_ptr(), flags.data_ptr()),
            *(numbers.ctypes.data, factors.ctypes.data, ctypes.addressof(handle)),
        )
        self._handle = handle.value
        self.scratch_bytes = 0
        """What `score` keeps until it is forgotten."""
        self.close = weakref.finalize(self, self._core.mg_ranking_destroy, self._handle)
        """Gives the memory back; never use the ranking afterwards."""

    def sums(self) -> Tensor:
        """int64 [tables, 257] of the norms of live chunks: how many, and their mantissas by exponent.

        Numbers that are not finite are left out, and so are exempt tables.
        """
        sums = torch.empty((len(self._pool.tables), SUM_NUMBERS), dtype=torch.int64)
        with self._alone():
            self._core.mg_ranking_sums(self._handle, self._pool.native_handle, sums.data_ptr())
        return sums

    @staticmethod
    def means(total: Tensor) -> Tensor:
        """float32 [tables], from `sums` or from what `score` gives, added up over ranks.

        A table without numbers, or all of whose numbers are 0, has the mean of all tables, or else 1.
        """
        return ranking_means(total)

    def score(self, norms: Tensor, fades: Sequence[float] | None = None) -> Tensor:
        """Values of all chunks that compete, which are kept; int64 [tables, 257], their sums by table.

        `norms` are the tables' mean norms; `fades` (else 1) are powers of magnitudes, in steps of 1/16.
        """
        powers = fade_sixteenths(fades, len(self._pool.tables))
        given = torch.stack([self._numbers(norms), torch.tensor(powers, dtype=torch.float32)], dim=1)
        sums = torch.empty((len(self._pool.tables), SUM_NUMBERS), dtype=torch.int64)
        taken = ctypes.c_int64(0)
        with self._alone():
            self._core.mg_ranking_score(
                *(self._handle, self._pool.native_handle, given.data_ptr(), sums.data_ptr()),
                ctypes.addressof(taken),
            )
        self.scratch_bytes = taken.value
        return sums

    def histogram(self, scales: Tensor, level: int, prefix: int = 0) -> Tensor:
        """int64 [65536]: bytes of the chunks that compete, by 16 bits of their key.

        Level 0: the upper half of the score's bits; 1: the lower half where the upper one is `prefix`; 2: the
        hash where the score's bits are `prefix`.
        """
        scales = self._numbers(scales)
        counted = torch.empty(HISTOGRAM_SIZE, dtype=torch.int64)
        with self._alone():
            self._core.mg_ranking_histogram(
                *(self._handle, self._pool.native_handle, scales.data_ptr(), level, prefix),
                counted.data_ptr(),
            )
        return counted

    def changes(self, scales: Tensor, key: int) -> Tensor:
        """int64 [5]: what `apply` would change, in the order of `RankingChanges`."""
        scales = self._numbers(scales)
        counts = torch.empty(len(RankingChanges._fields), dtype=torch.int64)
        with self._alone():
            self._core.mg_ranking_changes(
                self._handle, self._pool.native_handle, scales.data_ptr(), key, counts.data_ptr()
            )
        return counts

    def apply(self, scales: Tensor, key: int) -> None:
        """Prunes and grows the pool, and forgets what `score` kept; `pool.compact()` should follow.

        Chunks that begin take their share of the row's growth utility with them; those that go leave theirs
        there. Rows that begin leave the sketch, rows that go enter it with all their utility, if none in
        its bucket is larger.
        """
        scales = self._numbers(scales)
        self.scratch_bytes = 0
        with self._alone():
            self._core.mg_ranking_apply(self._handle, self._pool.native_handle, scales.data_ptr(), key)

    def forget(self) -> None:
        """Gives the memory back that `score` took, where nothing is applied."""
        self.scratch_bytes = 0
        self._core.mg_ranking_forget(self._handle)

    def outline_changes(self) -> Tensor:
        """int64 [rows, 4]: (table, row, live chunks before, live chunks now) of the rows of the second pool
        that the last `apply` changed. Chunks that they gained have no norm yet."""
        count = ctypes.c_int64(0)
        self._core.mg_ranking_outline_changes(self._handle, ctypes.addressof(count), None)
        changes = torch.empty(count.value, 4, dtype=torch.int64)
        self._core.mg_ranking_outline_changes(self._handle, ctypes.addressof(count), changes.data_ptr())
        return changes

    def _alone(self) -> AbstractContextManager[Any]:
        """Nobody uses the second pool meanwhile; the first has a lock of its own."""
        return nullcontext() if self._outlines is None else self._outlines.lock

    def _numbers(self, numbers: Tensor) -> Tensor:
        """One for each table, above 0."""
        numbers = numbers.float().contiguous()
        if numbers.shape != (len(self._pool.tables),) or not bool((numbers > 0).all()):
            raise ValueError("norms and scales are float32 [tables], above 0")
        return numbers


def threshold(histogram: Callable[[int, int], Tensor], budget: int) -> int:
    """The lowest key with which all chunks of at least that key take no more than `budget` bytes.

    `histogram(level, prefix)` are the bytes of all pools and ranks; chunks of equal keys live or go together.
    """
    prefix, left = 0, budget
    for level in range(KEY_BITS // 16):
        counted = histogram(level, prefix)
        # From the highest down; those from `first` on fit.
        taken = np.cumsum(counted.numpy()[::-1])
        over = np.nonzero(taken > left)[0]
        if not len(over):
            return prefix << KEY_BITS - 16 * level
        if over[0]:
            left -= int(taken[over[0] - 1])
        prefix = prefix << 16 | (HISTOGRAM_SIZE - 1 - int(over[0]))
    return prefix + 1


def check_tables(pool: ChunkedRows, sketch: CandidateSketch, exempt: Sequence[bool]) -> None:
    """Refuses a sketch whose candidates are not rows of the pool."""
    if not len(pool.tables) == len(sketch.tables) == len(exempt):
        raise ValueError("a ranking has a sketch's table and a flag for each table of the pool")
    for number, (table, candidates) in enumerate(zip(pool.tables, sketch.tables, strict=True)):
        if candidates.mapped_rows is not None:
            if pool.raw_ids[number] is None or candidates.mapped_rows != pool.ranked_rows[number]:
                raise ValueError("a sketch of mapped rows is of a pool that ranks as many, by the same ids")
            continue
        first, last = (min(unit * candidates.unit_rows, candidates.rows) for unit in candidates.units)
        begins = candidates.first_row
        if table.start.first_row != begins or first < begins or last > begins + table.rows:
            raise ConfigError(
                f"A sketch of rows {first} to {last} is not of the table {table.start.table}, whose rows "
                f"here are {table.start.first_row} to {table.start.first_row + table.rows}."
            )
