"""How far estimates have turned out to be from the truth, learned while a tree is searched."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

_AS_BAD_AS = 4.0


class EstimateError:
    """How many times its estimate a leaf of a family cost so far, on average; for nodes of no family, how
    many times its estimate the best leaf did."""

    def __init__(self) -> None:
        self._sums: dict[Hashable, tuple[float, int]] = {}
        self._best = inf
        self._of_best = 1.0

    def factor(self, family: Hashable) -> float:
        """What an estimate of this family is to be multiplied with."""
        if family is None:
            return self._of_best
        total, count = self._sums.get(family, (0.0, 0))
        # One leaf as estimated to begin with: a family is worth a try until it has shown otherwise.
        return (1.0 + total) / (1 + count)

    def learn(self, family: Hashable, estimate: float, cost: float) -> None:
        """Takes note of what a leaf cost in the end."""
        if estimate <= 0:
            return
        # What cannot run is as bad as what runs badly.
        cost = min(cost, _AS_BAD_AS * estimate)
        total, count = self._sums.get(family, (0.0, 0))
        self._sums[family] = total + cost / estimate, count + 1
        if cost < self._best:
            self._best, self._of_best = cost, cost / estimate
