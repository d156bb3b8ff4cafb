"""The bound of large problems: many quick cases instead of a few linear programs.

A case says between which seconds each phase ends. Options with a larger piece are out, and with multipliers
m[p] <= weight[p] on the means no plan of the case is quicker than

    sum over tables of min over options (m x total / workers + n x bytes) + (weight - m) x least seconds
    - n x bytes of all workers

for any prices n of bytes, here those of the first linear program. Where no phase is below its least seconds
m = weight is the best choice, and the formula is one pass over arrays: a thousandth of what a program with
rows for largest pieces takes. The case with the lowest bound is split at seconds between the mean and the
largest piece of the phase where these are farthest apart, until time is up or no piece is too large.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import NUM_PHASES, Flags, Floats, Ints, PlacementProblem

_HALVINGS = 5
_CASES = (400, 600)
"""Cases at least and at most, whatever the deadline says."""


@dataclass(frozen=True)
class CapCase:
    """A case and what is known of it."""

    minimums: Floats
    caps: Floats
    usable: Flags
    latency: float
    seconds: float
    """Its bound."""
    choice: Ints
    """The cheapest option of each table."""
    phase_seconds: Floats
    """What the phases of that choice take, pieces aside."""


class CapCases:
    """Branch and bound over the seconds of the phases."""

    def __init__(self, problem: PlacementProblem, fitting: Flags, prices: Floats, priced_room: float) -> None:
        """`prices` is what the bytes of each option cost, `priced_room` what those of all workers do."""
        self._problem, self._fitting = problem, fitting
        self._total = np.ascontiguousarray(problem.total[:, :NUM_PHASES] / problem.world_size)
        self._peak = np.ascontiguousarray(problem.peak[:, :NUM_PHASES])
        self._prices, self._priced_room = prices, priced_room
        self._numbers = count()

    def lowest(
        self, kind_sets: list[tuple[Flags, float]], at_least: float, deadline: Deadline
    ) -> CapCase | None:
        """The case with the lowest bound when time is up; None if there is no plan at all.

        `at_least` is a bound that is known of all plans."""
        cases: list[tuple[float, int, CapCase]] = []
        no_floor, no_cap = np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)
        for usable, latency in kind_sets:
            self._push(cases, self._case(no_floor, no_cap, usable, latency), at_least)
        made = len(cases)
        while cases and made < _CASES[1]:
            if deadline.passed and made > _CASES[0]:
                break
            seconds, _, case = cases[0]
            split = self._split(case)
            if split is None:
                break
            heapq.heappop(cases)
            phase, threshold = split
            for raised in (False, True):
                minimums, caps = case.minimums.copy(), case.caps.copy()
                (minimums if raised else caps)[phase] = threshold
                made += 1
                self._push(cases, self._case(minimums, caps, case.usable, case.latency), seconds)
        return None if not cases else replace(cases[0][2], seconds=cases[0][0])

    def _push(self, cases: list[tuple[float, int, CapCase]], case: CapCase | None, at_least: float) -> None:
        if case is not None:
            # A case can be no better than the one it is a part of.
            heapq.heappush(cases, (max(at_least, case.seconds), next(self._numbers), case))

    def _case(self, minimums: Floats, caps: Floats, usable: Flags, latency: float) -> CapCase | None:
        problem = self._problem
        allowed = usable & self._fitting & np.asarray(np.all(self._peak <= caps, axis=1))
        options = np.flatnonzero(allowed)
        counts = np.bincount(problem.table[options], minlength=problem.num_tables)
        if not counts.all():
            return None
        begins = np.concatenate(([0], np.cumsum(counts)[:-1]))
        totals, prices = self._total[options], self._prices[options]

        def priced(multipliers: Floats) -> tuple[float, Ints, Floats]:
            cost = totals @ multipliers + prices
            cheapest = np.minimum.reduceat(cost, begins)
            # The first option of each table that is as cheap.
            equal = np.flatnonzero(cost == np.repeat(cheapest, counts))
            chosen = equal[np.searchsorted(equal, begins)]
            value = float(cheapest.sum()) + float((problem.weights - multipliers) @ minimums)
            return value - self._priced_room, chosen, totals[chosen].sum(axis=0)

        best_multipliers = problem.weights.copy()
        best = priced(best_multipliers)
        for phase in np.flatnonzero((best[2] < minimums) & (problem.weights > 0)).tolist():
            low, high = 0.0, float(best_multipliers[phase])
            for _ in range(_HALVINGS):
                tried = best_multipliers.copy()
                tried[phase] = (low + high) / 2
                found = priced(tried)
                if found[0] > best[0]:
                    best, best_multipliers = found, tried
                if found[2][phase] < minimums[phase]:
                    high = float(tried[phase])
                else:
                    low = float(tried[phase])
        value, chosen, means = best
        seconds = value + problem.latency_seconds + latency
        reached = np.maximum(means, minimums)
        return CapCase(minimums, caps, usable, latency, seconds, options[chosen], reached)

    def _split(self, case: CapCase) -> tuple[int, float] | None:
        """The phase whose pieces are farthest beyond its seconds, and a threshold between the two."""
        largest = self._peak[case.choice].max(axis=0)
        excess = self._problem.weights * np.maximum(largest - case.phase_seconds * (1 + 1e-6), 0.0)
        phase = int(np.argmax(excess))
        if excess[phase] <= 1e-9 * max(case.seconds, 1e-30):
            return None
        return phase, (max(float(case.phase_seconds[phase]), 1e-30) + float(largest[phase])) / 2
