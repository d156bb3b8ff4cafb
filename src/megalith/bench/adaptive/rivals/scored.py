"""`ScoredPool`: one pool of rows for all governed tables, whose method sees the gradient of every id.

Ids of all governed tables are numbered one after the other: the `number` of an id is its own plus the rows of
the tables before its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.bench.adaptive.problem import SizeProblem, start_scale
from megalith.bench.adaptive.rivals.plan import PlanBuilder
from megalith.bench.adaptive.rivals.translated import TranslatedTables
from megalith.embeddings.collection import Lookup, PendingTables
from megalith.embeddings.optimizers import RowOptimizer

POOL = "pool"
"""The stored table that holds the rows of all governed ones."""


class TrainedIds(NamedTuple):
    """What a training step did with the ids of the governed tables."""

    numbers: Tensor
    """Distinct, in order."""
    accesses: Tensor
    norms: Tensor
    """Of the gradient of each id, summed over the batch."""


class ScoredPool(TranslatedTables, ABC):
    """Tables in one pool; `rows_of` says which row a number has, `trained` hears of gradients."""

    def __init__(self, builder: PlanBuilder, optimizer: RowOptimizer, seed: int) -> None:
        problem = builder.problem
        super().__init__(problem.tables, builder.stored, builder.features, optimizer, seed)
        self.starts = first_numbers(problem)
        """The first number of each governed table, and how many there are at the end."""
        tables = [number for number, table in enumerate(problem.governed) for _ in table.features]
        self._table_of = dict(zip(self._pool_features(), tables, strict=True))
        self._dim = problem.one_shape().dim
        columns, widths = 0, {table.name: table.dim * len(table.features) for table in builder.stored}
        for name, width in widths.items():
            if name == POOL:
                self._columns = columns, columns + width
            columns += width
        self.scales = torch.tensor([start_scale(table) for table in problem.governed])
        self.generator = torch.Generator().manual_seed(seed + 1)
        self._batch: tuple[Tensor, Tensor] | None = None

    def _pool_features(self) -> Sequence[int]:
        own = next(table for table in self.tables if table.name == POOL).features
        positions = {feature.name: at for at, feature in enumerate(self.features)}
        return [positions[name] for name in own]

    def translate(self, ids: list[Tensor], lengths: Tensor, *, trains: bool) -> list[Tensor]:
        """Rows of the pool for all ids of governed tables; others are themselves."""
        pooled = list(self._table_of)
        numbers = torch.cat([ids[at] + self.starts[self._table_of[at]] for at in pooled])
        rows = self.rows_of(numbers, trains=trains)
        if trains:
            self._batch = numbers, lengths[pooled].reshape(-1)
        translated = list(ids)
        for at, own in zip(pooled, rows.split([len(ids[at]) for at in pooled]), strict=True):
            translated[at] = own
        return translated

    @abstractmethod
    def rows_of(self, numbers: Tensor, *, trains: bool) -> Tensor:
        """The row that each number reads."""

    @abstractmethod
    def trained(self, ids: TrainedIds) -> None:
        """The gradients of a step, before rows take it."""

    def finish_lookup(self, pending: PendingTables) -> Lookup:
        """The vectors; their gradients are seen when they come."""
        lookup = super().finish_lookup(pending)
        if lookup.pooled.requires_grad and self._batch is not None:
            numbers, lengths = self._batch
            lookup.pooled.register_hook(lambda gradient: self._saw(gradient, numbers, lengths))
            self._batch = None
        return lookup

    def _saw(self, gradient: Tensor, numbers: Tensor, lengths: Tensor) -> None:
        first, last = self._columns
        bags = gradient[:, first:last].reshape(len(gradient), -1, self._dim).transpose(0, 1)
        of_values = bags.reshape(-1, self._dim).repeat_interleave(lengths, dim=0)
        distinct, inverse, counts = numbers.unique(return_inverse=True, return_counts=True)
        summed = torch.zeros(len(distinct), self._dim).index_add_(0, inverse, of_values.float())
        self.trained(TrainedIds(distinct, counts, summed.norm(dim=1)))

    def tables_of(self, numbers: Tensor) -> Tensor:
        """The governed table of each number."""
        return torch.searchsorted(self.starts, numbers, right=True) - 1

    def begin_rows(self, rows: Tensor, numbers: Tensor) -> None:
        """Gives rows of the pool to other ids: start values of their tables, and fresh state."""
        weight = self.inner.weight(POOL)
        fresh = torch.rand(len(rows), self._dim, generator=self.generator) * 2 - 1
        weight[rows] = (fresh * self.scales[self.tables_of(numbers), None]).to(weight.dtype)
        for state in self.inner.state(POOL).values():
            state[rows] = 0


def first_numbers(problem: SizeProblem) -> Tensor:
    """The first number of each governed table, and the count of all at the end."""
    counts = torch.tensor([0, *(table.rows for table in problem.governed)])
    return counts.cumsum(0)


def pool_rows(left: float, row_bytes: int) -> int:
    """Rows that fit, rounded down; below 0 where bookkeeping alone is too much."""
    return math.floor(left / row_bytes)
