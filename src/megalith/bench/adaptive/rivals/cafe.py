"""CAFE-like (Zhang et al., 2024): ids with large gradients have rows of their own, all others share rows.

A sketch of buckets of four slots finds them: an id that has no slot takes that of the lowest score and begins
with this score. Every `interval` steps the ids with the highest scores get the rows of their own, which
begin as the shared row that the id had, with its state; the others go back to their shared row.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from megalith.bench.adaptive.problem import SizeProblem, infeasible, share_rows
from megalith.bench.adaptive.rivals.plan import PlanBuilder, RivalPlan
from megalith.bench.adaptive.rivals.scored import POOL, ScoredPool, TrainedIds, pool_rows
from megalith.bench.adaptive.rivals.translated import hashed
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.base import StoreBytes

SLOTS = 4
SLOT_BYTES = 12
"""An id, its score and its row."""


class HotSketch:
    """Which ids have large scores, in bounded memory."""

    def __init__(self, buckets: int) -> None:
        self.keys = torch.full((buckets, SLOTS), -1, dtype=torch.int32)
        self.scores = torch.zeros(buckets, SLOTS)
        self.rows = torch.full((buckets, SLOTS), -1, dtype=torch.int32)
        """Of one's own, -1 for none."""

    @property
    def nbytes(self) -> int:
        """Of all slots."""
        return self.keys.nbytes + self.scores.nbytes + self.rows.nbytes

    def buckets(self, numbers: Tensor) -> Tensor:
        """The bucket of each number."""
        return hashed(numbers, len(self.keys), 77)

    def rows_of(self, numbers: Tensor) -> Tensor:
        """The row of its own that each number has, or -1."""
        buckets = self.buckets(numbers)
        found = self.keys[buckets] == numbers[:, None]
        return torch.where(found, self.rows[buckets].long(), -1).amax(dim=1)

    def add(self, numbers: Tensor, values: Tensor) -> None:
        """Adds to the scores of distinct numbers; those without a slot take the lowest of their bucket."""
        buckets = self.buckets(numbers)
        matches = self.keys[buckets] == numbers[:, None]
        found = matches.any(dim=1)
        self.scores[buckets[found], matches[found].int().argmax(dim=1)] += values[found]
        new, values, buckets = numbers[~found], values[~found], buckets[~found]
        order = buckets.argsort(stable=True)
        new, values, buckets = new[order], values[order], buckets[order]
        _, counts = buckets.unique_consecutive(return_counts=True)
        turns = torch.arange(len(new)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        # One number of each bucket at a time, as if they came one after the other.
        by_turn = turns.argsort(stable=True)
        for own in by_turn.split(turns.bincount().tolist()) if len(new) else ():
            bucket = buckets[own]
            lowest = self.scores[bucket].argmin(dim=1)
            self.keys[bucket, lowest] = new[own].int()
            self.scores[bucket, lowest] += values[own]
            self.rows[bucket, lowest] = -1


class CafeTables(ScoredPool):
    """Rows of their own for ids of the sketch, before the rows that all others share."""

    def __init__(
        self,
        builder: PlanBuilder,
        optimizer: RowOptimizer,
        seed: int,
        hot: int,
        buckets: int,
        shared: list[int],
        decay: float,
        interval: int,
    ) -> None:
        """Rows of ids of their own, and of those that ids of each governed table share."""
        super().__init__(builder, optimizer, seed)
        self.sketch, self.hot = HotSketch(buckets), hot
        self._shared = torch.tensor(shared)
        self._first_shared = hot + self._shared.cumsum(0) - self._shared
        self._decay, self._interval, self._ranked = decay, interval, 0
        tables = torch.arange(len(shared)).repeat_interleave(self._shared)
        self.begin_rows(torch.arange(hot, hot + len(tables)), self.starts[tables])

    def rows_of(self, numbers: Tensor, *, trains: bool) -> Tensor:
        """An id's own row, else the shared one."""
        del trains
        own = self.sketch.rows_of(numbers)
        return torch.where(own >= 0, own, self._shared_rows(numbers))

    def _shared_rows(self, numbers: Tensor) -> Tensor:
        tables = self.tables_of(numbers)
        return self._first_shared[tables] + hashed(numbers, 1 << 40, 5) % self._shared[tables]

    def trained(self, ids: TrainedIds) -> None:
        """Scores are sums of gradient norms."""
        self.sketch.add(ids.numbers, ids.norms)

    def begin_step(self) -> None:
        """Ids come to rows of their own and leave them, if it is time."""
        if self.num_steps - self._ranked < self._interval:
            return
        self._ranked = self.num_steps
        sketch = self.sketch
        keys, scores, rows = sketch.keys.view(-1), sketch.scores.view(-1), sketch.rows.view(-1)
        order = scores.argsort(descending=True, stable=True)[: self.hot]
        wanted = torch.zeros(len(keys), dtype=torch.bool)
        wanted[order[keys[order] >= 0]] = True
        rows[~wanted] = -1
        new = (wanted & (rows < 0)).nonzero().view(-1)
        is_free = torch.ones(self.hot, dtype=torch.bool)
        is_free[rows[rows >= 0].long()] = False
        given = is_free.nonzero().view(-1)[: len(new)]
        shared = self._shared_rows(keys[new].long())
        weight = self.inner.weight(POOL)
        weight[given] = weight[shared]
        for state in self.inner.state(POOL).values():
            state[given] = state[shared]
        rows[new] = given.int()
        scores *= self._decay

    def bytes(self) -> StoreBytes:
        """What is stored, with the sketch."""
        own = super().bytes()
        return replace(own, sketch=own.sketch + self.sketch.nbytes)


def cafe(
    problem: SizeProblem,
    hot_share: float = 0.6,
    buckets: float = 4.0,
    decay: float = 0.98,
    interval: int = 25,
) -> RivalPlan:
    """Rows of their own take `hot_share` of the bytes, with a sketch of `buckets` for each of them."""
    builder, shape, tables = PlanBuilder(problem), problem.one_shape(), problem.governed
    size, own = problem.row_bytes(shape), buckets * SLOTS * SLOT_BYTES
    count = sum(table.rows for table in tables)
    hot = min(count, pool_rows(hot_share * problem.left, math.ceil(size + own)))
    num_buckets = max(1, int(hot * buckets))
    left = problem.left - hot * size - num_buckets * SLOTS * SLOT_BYTES
    shared = share_rows([table.rows for table in tables], [1] * len(tables), [size] * len(tables), left)
    if hot < 1 or shared is None:
        raise infeasible("cafe", (size + own) / hot_share + size * len(tables), problem.left)
    builder.pool(POOL, shape.model_copy(update={"rows": hot + sum(shared), "padding_index": None}))

    def make(optimizer: RowOptimizer, seed: int) -> CafeTables:
        return CafeTables(builder, optimizer, seed, hot, num_buckets, shared, decay, interval)

    return builder.plan(make)
