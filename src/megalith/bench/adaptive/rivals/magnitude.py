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

_SHIFT, _BINS = 16, 1 << 15
"""Thresholds are told apart by the upper bits of a float: its exponent and 7 bits of its mantissa."""


class SparseTable(NamedTuple):
    """What lives of a table, as it is stored."""

    weights: Tensor
    states: tuple[Tensor, ...]
    positions: Tensor
    """Bits of all weights as bytes, or int32 positions of those that live."""

    @property
    def nbytes(self) -> int:
        """Of all parts."""
        return self.weights.nbytes + sum(state.nbytes for state in self.states) + self.positions.nbytes


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
        """The lowest threshold, to 8 bits, with which what lives fits the budget."""
        scales = {name: self._scale(name) for name in self._names}
        taken = sum(self._bytes_by_threshold(name, scales[name]) for name in self._names)
        assert isinstance(taken, Tensor)
        # Where what is larger than zero fits there is nothing to prune.
        lowest = 1 + int((taken[1:] > budget).sum())
        if lowest == 1:
            return
        threshold = float(torch.tensor(lowest << _SHIFT, dtype=torch.int32).view(torch.float32))
        for name in self._names:
            self._masks[name] = self._masks[name] & (self._magnitudes(name, scales[name]) >= threshold)
            self.inner.weight(name).mul_(self._masks[name])

    def _magnitudes(self, name: str, scale: float) -> Tensor:
        """Of all weights of a table; those that were pruned are zeros."""
        return self.inner.weight(name).abs().float() / scale

    def _bytes_by_threshold(self, name: str, scale: float) -> Tensor:
        """int64 [bins]: what a table takes if weights live whose upper bits are at least the bin's number."""
        bins = self._magnitudes(name, scale).view(torch.int32) >> _SHIFT
        alive, rows = _at_least(bins.view(-1)), _at_least(bins.amax(dim=1))
        return self._sparse_bytes(name, alive, rows)

    def _scale(self, name: str) -> float:
        if not self._normalised:
            return 1.0
        mask = self._masks[name]
        mean = self.inner.weight(name).abs().sum(dtype=torch.float64) / mask.sum().clamp_min(1)
        return max(float(mean), 1e-30)

    def _sparse_bytes(self, name: str, alive: Tensor, rows: Tensor) -> Tensor:
        """What a table takes where so many weights live, of so many rows."""
        weight = self.inner.weight(name)
        positions = alive * _position_bytes(weight.numel())
        total = alive * weight.itemsize + positions.clamp_max(-(-weight.numel() // 8))
        for state in self.inner.state(name).values():
            # State of rows is kept for those with a weight.
            total = total + 4 * (alive if state.shape == weight.shape else rows)
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
        if alive * _position_bytes(mask.numel()) < index.nbytes:
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
            total = total.plus(StoreBytes(stored.weights.nbytes, own, stored.positions.nbytes))
        return total


def _position_bytes(weights: int) -> int:
    return 4 if weights < 2**31 else 8


def _at_least(bins: Tensor) -> Tensor:
    """How many are in each bin or in one above it."""
    return torch.bincount(bins, minlength=_BINS).flip(0).cumsum(0).flip(0)


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
