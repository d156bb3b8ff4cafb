"""`Ranking`: which chunks of a pool live, when all that may live compete for a number of bytes.

    ranking = Ranking(pool, sketch, RankingSettings(), exempt=[False, True])
    means = ranking.means(added(ranking.sums()))
    key = threshold(lambda level, prefix: added(ranking.histogram(means, level, prefix)), budget)
    ranking.changes(means, key)              # (pruned, grown, begun, removed, bytes): is it worth it?
    ranking.apply(means, key)
    pool.compact()

`added` sums over ranks, histograms and changes also over pools of other shapes; all are integers, so that any
number of ranks decides the same. Rows keep a prefix of their chunks. With C chunks of `width` columns,
utilities u and norms of weights n, Z and M their means over the table's live chunks, and the factor of a
position f(j) = (1 + j * width / columns) ** power:

    live chunk j = 0..k-1   u_j / Z * min(max(n_j / M, floor), ceiling) / f(j)
    next of k < C           growth / (C - k) / Z * dead / f(k) / hysteresis
    first of a candidate    the same with k = 0 and its utility

each at most that of the chunk before it; all in float32, in this order. A key is the score's 32 bits and 16
bits of a hash of (table, id, chunk). Chunks with a key of at least the threshold live; a next chunk that
nothing asked for, of score 0, does not compete. The twin is in `ranking_twin.py`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops import native
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.ranking_sums import KEY_BITS, SUM_NUMBERS, RankingSettings, ranking_means
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

    `histogram` of level 0 keeps all scores, 4 bytes for each chunk that competes, until `apply` or `forget`.
    In between nobody may train, add to the sketch or change rows (which is refused).
    """

    def __init__(
        self,
        pool: ChunkedRows,
        sketch: CandidateSketch,
        settings: RankingSettings,
        exempt: Sequence[bool],
    ) -> None:
        self._core = native.library()
        self._pool, self._sketch, self._settings = pool, sketch, settings
        check_tables(pool, sketch, exempt)
        flags = torch.tensor([bool(one) for one in exempt], dtype=torch.uint8)
        numbers, factors = settings.numbers(), settings.factors(pool.shape.chunks, pool.shape.width)
        handle = ctypes.c_void_p()
        self._core.mg_ranking_create(
            *(pool.native_handle, sketch.native_tables.data_ptr(), flags.data_ptr()),
            *(numbers.ctypes.data, factors.ctypes.data, ctypes.addressof(handle)),
        )
        self._handle = handle.value
        self._scored: Tensor | None = None
        self.scratch_bytes = 0
        """What the scores take until they are forgotten."""
        self.close = weakref.finalize(self, self._core.mg_ranking_destroy, self._handle)
        """Gives the memory back; never use the ranking afterwards."""

    def sums(self) -> Tensor:
        """int64 [tables, 2, 257] of utilities and norms of live chunks: how many, and mantissas by exponent.

        Numbers that are negative or not finite are left out, and so are exempt tables.
        """
        sums = torch.empty((len(self._pool.tables), 2, SUM_NUMBERS), dtype=torch.int64)
        self._core.mg_ranking_sums(self._handle, self._pool.native_handle, sums.data_ptr())
        return sums

    @staticmethod
    def means(total: Tensor) -> Tensor:
        """float32 [tables, 2]: of utilities and norms, from `sums` added up over ranks.

        A table without live chunks, or all of whose numbers are 0, has the mean of all tables, or else 1.
        """
        return ranking_means(total)

    def histogram(self, means: Tensor, level: int, prefix: int = 0) -> Tensor:
        """int64 [65536]: bytes of the chunks that compete, by 16 bits of their key.

        Level 0: the upper half of the score's bits; 1: the lower half where the upper one is `prefix`; 2: the
        hash where the score's bits are `prefix`.
        """
        self._score(means, again=level == 0)
        counted = torch.empty(HISTOGRAM_SIZE, dtype=torch.int64)
        self._core.mg_ranking_histogram(
            self._handle, self._pool.native_handle, level, prefix, counted.data_ptr()
        )
        return counted

    def changes(self, means: Tensor, key: int) -> Tensor:
        """int64 [5]: what `apply` would change, in the order of `RankingChanges`."""
        self._score(means)
        counts = torch.empty(len(RankingChanges._fields), dtype=torch.int64)
        self._core.mg_ranking_changes(self._handle, self._pool.native_handle, key, counts.data_ptr())
        return counts

    def apply(self, means: Tensor, key: int) -> None:
        """Prunes and grows the pool, and forgets the scores; `pool.compact()` should follow.

        A chunk that begins takes its share of the row's growth utility with it, and at least `new_utility` of
        the table's mean; chunks that go leave theirs there. Rows that begin leave the sketch, rows that go
        enter it with all their utility, if its bucket has none larger.
        """
        means = self._score(means)
        self._scored, self.scratch_bytes = None, 0
        self._core.mg_ranking_apply(self._handle, self._pool.native_handle, means.data_ptr(), key)

    def forget(self) -> None:
        """Gives the memory of the scores back, where nothing is applied."""
        self._scored, self.scratch_bytes = None, 0
        self._core.mg_ranking_forget(self._handle)

    def _score(self, means: Tensor, *, again: bool = False) -> Tensor:
        means = means.float().contiguous()
        if means.shape != (len(self._pool.tables), 2):
            raise ValueError("means are float32 [tables, 2]")
        if again or self._scored is None or not torch.equal(means, self._scored):
            taken = ctypes.c_int64(0)
            self._core.mg_ranking_score(
                self._handle, self._pool.native_handle, means.data_ptr(), ctypes.addressof(taken)
            )
            self._scored, self.scratch_bytes = means.clone(), taken.value
        return means


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
    for table, candidates in zip(pool.tables, sketch.tables, strict=True):
        first, last = (min(unit * candidates.unit_rows, candidates.rows) for unit in candidates.units)
        begins = candidates.first_row
        if table.start.first_row != begins or first < begins or last > begins + table.rows:
            raise ConfigError(
                f"A sketch of rows {first} to {last} is not of the table {table.start.table}, whose rows "
                f"here are {table.start.first_row} to {table.start.first_row + table.rows}."
            )
