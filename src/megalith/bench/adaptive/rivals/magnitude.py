"""Magnitude pruning in training (Zhu and Gupta, 2017): the smallest weights become zeros and stay so.

Any weight may be pruned by itself. What lives is charged as it is stored sparse: weights, state, and for each
table a bit for every weight there is, or four bytes for every one that lives, whichever is less. While it
trains all weights and all state are in memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.bench.adaptive.problem import SizeProblem, infeasible
from megalith.bench.adaptive.rivals.plan import PlanBuilder, RivalPlan
from megalith.bench.adaptive.rivals.translated import TranslatedTables
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.base import StoreBytes

_HALVINGS = 40


class SparseTable(NamedTuple):
    """What lives of a table, as it is stored."""

    weights: Tensor
    states: tuple[Tensor, ...]
    index: Tensor
    """Bits of all weights as bytes, or int32 positions of those that live."""

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return self.weights.nbytes + sum(state.nbytes for state in self.states) + self.index.nbytes


class MagnitudeTables(TranslatedTables):
    """Dense tables under masks that shrink."""

    def __init__(
        self, builder: PlanBuilder, optimizer: RowOptimizer, seed: int, end: float, normalised: bool
    ) -> None:
        problem = self._problem = builder.problem
        super().__init__(problem.tables, builder.stored, builder.features, optimizer, seed)
        self._names = [table.name for table in problem.governed]
        self._masks = {
            name: torch.ones_like(self.inner.weight(name), dtype=torch.bool) for name in self._names
        }
        self._normalised = normalised
        self._warm_up = min(50, problem.total_steps // 10)
        self._end = max(self._warm_up + 1, round(end * problem.total_steps))
        self._interval = max(1, min(25, (self._end - self._warm_up) // 8), problem.total_steps // 60)
        self._dense = memory_of(problem.governed, [optimizer] * len(problem.governed)).total
        self._touched: list[tuple[str, Tensor]] = []
        self._is_done = False

    def translate(self, ids: list[Tensor], lengths: Tensor, *, trains: bool) -> list[Tensor]:
        """Ids as they are; rows that the last step changed are brought under their masks first."""
        self.apply_masks()
        if trains:
            of = {name: table.name for table in self.tables for name in table.features}
            named = [(of[feature.name], own) for feature, own in zip(self.features, ids, strict=True)]
            self._touched = [(name, own) for name, own in named if name in self._masks]
        return super().translate(ids, lengths, trains=trains)

    def apply_masks(self) -> None:
        """Weights that were pruned are zeros again after a step."""
        for name, ids in self._touched:
            rows = ids.unique()
            weight = self.inner.weight(name)
            weight[rows] = weight[rows] * self._masks[name][rows]
        self._touched = []

    def begin_step(self) -> None:
        """Prunes, if it is time."""
        step = self.num_steps
        if step < self._warm_up or self._is_done:
            return
        if step >= self._end or (step - self._warm_up) % self._interval == 0:
            self.apply_masks()
            passed = min(1.0, (step - self._warm_up) / (self._end - self._warm_up))
            left = self._problem.left
            self._prune(int(left + (self._dense - left) * (1 - passed) ** 3))
            self._is_done = passed == 1

    def _prune(self, budget: int) -> None:
        """The lowest threshold with which what lives fits the budget."""
        scales = {name: self._scale(name) for name in self._names}
        largest = max(float((self.inner.weight(name).abs().amax()) / scales[name]) for name in self._names)

        def taken(threshold: float) -> int:
            return sum(
                self.sparse_bytes(name, self._lives(name, threshold * scales[name])) for name in self._names
            )

        low, high = 0.0, 2 * largest
        if taken(low) <= budget:
            return
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if taken(middle) > budget else (low, middle)
        for name in self._names:
            mask = self._lives(name, high * scales[name])
            self._masks[name] = mask
            self.inner.weight(name).mul_(mask)

    def _scale(self, name: str) -> float:
        if not self._normalised:
            return 1.0
        mask = self._masks[name]
        mean = self.inner.weight(name).abs().sum(dtype=torch.float64) / mask.sum().clamp_min(1)
        return max(float(mean), 1e-30)

    def _lives(self, name: str, threshold: float) -> Tensor:
        return self._masks[name] & (self.inner.weight(name).abs() >= threshold)

    def sparse_bytes(self, name: str, mask: Tensor) -> int:
        """What a table takes where these of its weights live."""
        alive = int(mask.sum())
        total = alive * self.inner.weight(name).itemsize + min(
            -(-mask.numel() // 8), _position_bytes(mask, alive)
        )
        for state in self.inner.state(name).values():
            # State of rows is kept for those with a weight.
            total += 4 * (alive if state.shape == mask.shape else int(mask.any(dim=1).sum()))
        return total

    def sparse(self, name: str) -> SparseTable:
        """What lives of a table, as it would be stored."""
        mask = self._masks[name]
        states = tuple(
            state[mask] if state.shape == mask.shape else state[mask.any(dim=1)]
            for state in self.inner.state(name).values()
        )
        bits = torch.nn.functional.pad(mask.view(-1), (0, -mask.numel() % 8)).view(-1, 8)
        places = torch.tensor([1 << bit for bit in range(8)])
        index = (bits * places).sum(dim=1).to(torch.uint8)
        alive = int(mask.sum())
        if _position_bytes(mask, alive) < index.nbytes:
            positions = mask.view(-1).nonzero().view(-1)
            index = positions.int() if mask.numel() < 2**31 else positions
        return SparseTable(self.inner.weight(name)[mask], states, index)

    def bytes(self) -> StoreBytes:
        """What lives, stored sparse, and the tables that stay whole."""
        total = StoreBytes()
        for table in self.tables:
            weight, state = self.inner.weight(table.name), self.inner.state(table.name)
            if table.name not in self._masks:
                whole = sum(each.nbytes for each in state.values())
                total = total.plus(StoreBytes(weights=weight.nbytes, state=whole))
                continue
            stored = self.sparse(table.name)
            own = sum(each.nbytes for each in stored.states)
            total = total.plus(StoreBytes(stored.weights.nbytes, own, stored.index.nbytes))
        return total


def _position_bytes(mask: Tensor, alive: int) -> int:
    return alive * (4 if mask.numel() < 2**31 else 8)


def magnitude(problem: SizeProblem, end: float = 0.9, normalised: bool = False) -> RivalPlan:
    """Prunes from the warm-up to the part `end` of the run, by a cubic curve."""
    if problem.left < 16 * len(problem.governed):
        raise infeasible("magnitude", 16 * len(problem.governed), problem.left)
    builder = PlanBuilder(problem)
    for table in problem.governed:
        builder.keep(table)

    def make(optimizer: RowOptimizer, seed: int) -> MagnitudeTables:
        return MagnitudeTables(builder, optimizer, seed, end, normalised)

    return builder.plan(make)
