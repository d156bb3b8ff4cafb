"""Whole rows for the ids that are worth most: AdaEmbed-like over all tables, and ITEP-like table by table.

Both keep a score and the row for every id there may be, 8 bytes of it, and that is their floor. Ids without a
row read zeros and are not trained. A row is given to the first that ask for one while there are free ones;
then every `interval` steps to those with the highest scores.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.bench.adaptive.problem import SizeProblem, infeasible, share_rows
from megalith.bench.adaptive.rivals.plan import PlanBuilder, RivalPlan
from megalith.bench.adaptive.rivals.scored import POOL, ScoredPool, TrainedIds, pool_rows
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.base import StoreBytes

ID_BYTES = 8
"""Of a score and a row, for every id there may be."""


class RowSettings(NamedTuple):
    """How ids are scored."""

    uses_gradients: bool
    """Accesses times the gradient's norm, over the 95th percentile of the table; otherwise accesses alone."""
    gamma: float
    """What is left of a score after a step."""
    interval: int = 25
    least_change: float = 0.05
    """Rows stay with their ids where fewer than this part of them would change."""


class _Group(NamedTuple):
    """Ids that compete for some rows."""

    numbers: tuple[int, int]
    rows: tuple[int, int]


class ScoredRows(ScoredPool):
    """Whole rows of the ids with the highest scores."""

    def __init__(
        self,
        builder: PlanBuilder,
        optimizer: RowOptimizer,
        seed: int,
        settings: RowSettings,
        rows: list[int],
    ) -> None:
        """`rows` of each governed table, or of all of them together."""
        super().__init__(builder, optimizer, seed)
        self.settings = settings
        count = int(self.starts[-1])
        self.scores = torch.zeros(count)
        self.rows = torch.full((count,), -1, dtype=torch.int32)
        """Of each number, -1 for none."""
        self._padding = sum(rows)
        starts = self.starts.tolist() if len(rows) > 1 else [0, count]
        ends = torch.tensor([0, *rows]).cumsum(0).tolist()
        spans = zip(pairwise(starts), pairwise(ends), strict=True)
        self._groups = [_Group(numbers, own) for numbers, own in spans]
        self._next_free = [group.rows[0] for group in self._groups]
        self._ranked = 0

    def rows_of(self, numbers: Tensor, *, trains: bool) -> Tensor:
        """The row of each number, that of zeros for those without one."""
        if trains and any(
            free < group.rows[1] for free, group in zip(self._next_free, self._groups, strict=True)
        ):
            self._give_free(numbers)
        rows = self.rows[numbers].long()
        return torch.where(rows < 0, self._padding, rows)

    def _give_free(self, numbers: Tensor) -> None:
        absent = numbers[self.rows[numbers] < 0].unique()
        for at, group in enumerate(self._groups):
            own = absent[(absent >= group.numbers[0]) & (absent < group.numbers[1])]
            first = self._next_free[at]
            own = own[: group.rows[1] - first]
            rows = torch.arange(first, first + len(own))
            self.rows[own] = rows.int()
            self._next_free[at] += len(own)
            self.begin_rows(rows, own)

    def trained(self, ids: TrainedIds) -> None:
        """Adds to scores; new ones count more instead of old ones less."""
        weight = self.settings.gamma ** (self._ranked - self.inner.num_steps)
        gained = ids.accesses * ids.norms if self.settings.uses_gradients else ids.accesses.float()
        self.scores[ids.numbers] += weight * gained

    def begin_step(self) -> None:
        """Gives rows to others, if it is time."""
        if self.num_steps - self._ranked >= self.settings.interval:
            self.scores *= self.settings.gamma ** (self.num_steps - self._ranked)
            self._ranked = self.num_steps
            scores = self._normalised() if self.settings.uses_gradients else self.scores
            for group in self._groups:
                self._rank(group, scores[slice(*group.numbers)])

    def _normalised(self) -> Tensor:
        scores = self.scores.clone()
        bounds = self.starts.tolist()
        for first, last in pairwise(bounds):
            own = scores[first:last]
            seen = own[own > 0]
            if len(seen):
                own /= seen.sort().values[int(0.95 * (len(seen) - 1))].clamp_min(1e-30)
        return scores

    def _rank(self, group: _Group, scores: Tensor) -> None:
        count = group.rows[1] - group.rows[0]
        first = group.numbers[0]
        order = scores.argsort(descending=True, stable=True)[:count]
        wanted = torch.zeros(len(scores), dtype=torch.bool)
        wanted[order[scores[order] > 0]] = True
        rows = self.rows[slice(*group.numbers)]
        winners = (wanted & (rows < 0)).nonzero().view(-1)
        if len(winners) <= self.settings.least_change * count:
            return
        losers = ((rows >= 0) & ~wanted).nonzero().view(-1)
        losers = losers[scores[losers].argsort(stable=True)][: len(winners)]
        winners = winners[: len(losers)]
        given = rows[losers].long()
        rows[losers] = -1
        rows[winners] = given.int()
        self.begin_rows(given, winners + first)

    def bytes(self) -> StoreBytes:
        """What is stored, with the score and the row of every id."""
        own = super().bytes()
        return replace(own, utility=own.utility + self.scores.nbytes, index=own.index + self.rows.nbytes)


def rows(problem: SizeProblem, gamma: float = 0.998, interval: int = 25) -> RivalPlan:
    """AdaEmbed-like: one ranking of whole rows over all tables."""
    builder, shape = PlanBuilder(problem), problem.one_shape()
    size, count = problem.row_bytes(shape), sum(table.rows for table in problem.governed)
    fits = pool_rows(problem.left - ID_BYTES * count, size) - 1
    if fits < 1:
        raise infeasible("rows", ID_BYTES * count + 2 * size, problem.left)
    return _plan(builder, [min(fits, count)], RowSettings(True, gamma, interval))


def access_rows(problem: SizeProblem, gamma: float = 0.998, interval: int = 25) -> RivalPlan:
    """ITEP-like: whole rows by how often ids are accessed, each table on its own."""
    builder, shape, tables = PlanBuilder(problem), problem.one_shape(), problem.governed
    size, counts = problem.row_bytes(shape), [table.rows for table in tables]
    left = problem.left - ID_BYTES * sum(counts) - size
    shares = share_rows(counts, [1] * len(tables), [size] * len(tables), left)
    if shares is None:
        raise infeasible("access_rows", ID_BYTES * sum(counts) + size * (len(tables) + 1), problem.left)
    return _plan(builder, shares, RowSettings(False, gamma, interval, 0.0))


def _plan(builder: PlanBuilder, shares: list[int], settings: RowSettings) -> RivalPlan:
    shape, count = builder.problem.one_shape(), sum(shares)
    # The row behind the last reads as zeros.
    builder.pool(POOL, shape.model_copy(update={"rows": count + 1, "padding_index": count}))

    def make(optimizer: RowOptimizer, seed: int) -> ScoredRows:
        return ScoredRows(builder, optimizer, seed, settings, shares)

    return builder.plan(make)
