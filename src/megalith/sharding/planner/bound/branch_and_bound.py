"""A step time that no plan of these options can beat: branch and bound over the largest piece of each phase.

The linear program of `relaxation.py` lets a table be half whole and half cut, so that its largest piece seems
half as large. No plan can: for any threshold, either a phase takes at least that long, or no option with a
larger piece is in the plan. Each case is a program of its own with a higher bound; the lowest of all open
cases bounds every plan. The case with the lowest bound is split again until time is up, the target is
reached, or its mixture breaks no threshold. Kinds that need a collective of their own (all-reduce, sums
inside a node) make the first cases: without them, or with their latency.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from megalith.sharding.planner.bound.cap_cases import CapCases
from megalith.sharding.planner.bound.kind_sets import OPTIONAL_KINDS, kind_sets
from megalith.sharding.planner.bound.relaxation import PlanRelaxation, RelaxedPlan, undominated
from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Bounder,
    Flags,
    Floats,
    Ints,
    LowerBound,
    PlacementProblem,
)

_PRESENT = 0.02
"""Share from which an option counts as part of a table's mixture."""
_LARGE = 6000
"""Options from which quick cases take the place of linear programs, where tables find room."""
_MANY_WORKERS = 256
_ROOMY = 0.95
"""Of the memory of all workers, what tables may take for that."""
_NARROW = 1e-3
"""How much lower than its cap a phase is split at least."""
_LONGER = 1.3
"""Where patterns are looked at, how much longer than its mean a phase is split at,"""
_PATTERN_CASES = 200
"""and how many cases there are for that at most."""
_COUNTS = 0.05
"""Of the step, what a phase must take for its packing to be looked at."""


class BranchAndBound(Bounder):
    """Splits the linear program into cases until the deadline."""

    def lower_bound(self, problem: PlacementProblem, deadline: Deadline) -> LowerBound | None:
        """None if not even mixtures of options fit into the memory of all workers together."""
        return lower_bound(problem, deadline)


def lower_bound(
    problem: PlacementProblem, deadline: Deadline, known_seconds: float = np.inf, tolerance: float = 1e-3
) -> LowerBound | None:
    """None if not even mixtures of options fit into the memory of all workers together.

    Stops once the bound is within `tolerance` of `known_seconds`, the best plan so far, or at `deadline`.
    """
    relaxation = PlanRelaxation(problem)
    if len(problem.options) > _LARGE:
        quick = _bound_by_caps(problem, relaxation.fitting, deadline)
        if quick is not None:
            return quick
    no_floor, no_cap = np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)
    everything = relaxation.solve(no_floor, no_cap)
    if everything is None:
        return None
    cases: list[tuple[float, int, _Case]] = []
    for usable, latency in kind_sets(problem):
        solved = relaxation.solve(no_floor, no_cap, usable)
        if solved is not None:
            latency += problem.latency_seconds
            entry = _Case(solved, usable, latency, no_floor, no_cap)
            heapq.heappush(cases, (solved.seconds + latency, len(cases), entry))
    counter = len(cases)
    enough = known_seconds / (1 + tolerance)
    while True:
        seconds, _, case = cases[0]
        split = _split(problem, relaxation, case, relaxation.patterns.few and counter < _PATTERN_CASES)
        if split is None or seconds >= enough or deadline.passed:
            break
        heapq.heappop(cases)
        phase, threshold = split
        for raised in (False, True):
            minimums, caps = case.minimums.copy(), case.caps.copy()
            (minimums if raised else caps)[phase] = threshold
            solved = relaxation.solve(minimums, caps, case.usable)
            if solved is not None:
                # A case can be no better than the one it is a part of.
                entry = _Case(solved, case.usable, case.latency, minimums, caps)
                counter += 1
                heapq.heappush(cases, (max(seconds, solved.seconds + case.latency), counter, entry))
        if not cases:
            # Every case was found empty by a solver with tolerances: keep what is sure.
            heapq.heappush(cases, (seconds, counter, case))
            break
    seconds, _, case = cases[0]
    return LowerBound(
        seconds,
        _choice(problem, case.solved),
        everything.reduced,
        everything.seconds + problem.latency_seconds,
        case.usable,
        case.solved.phase_seconds,
        case.solved.memory_price,
        everything.memory_price,
        counter,
    )


def _bound_by_caps(problem: PlacementProblem, fitting: Flags, deadline: Deadline) -> LowerBound | None:
    """The bound of a large problem whose tables find room: bytes have no price. None where memory is short,
    which takes a linear program."""
    free = np.zeros(len(problem.options))
    # Comparing options pays off where there are many cases, and so on many workers.
    priced = _worth_pricing(problem, fitting) if problem.world_size > _MANY_WORKERS else fitting
    case = CapCases(problem, priced, free, 0.0).lowest(kind_sets(problem), 0.0, deadline)
    if case is None:
        return None
    held = problem.total[case.choice, NUM_PHASES:].sum(axis=0)
    if (held > _ROOMY * problem.capacity * problem.world_size).any():
        return None
    cost = problem.total[:, :NUM_PHASES] @ problem.weights / problem.world_size
    cost = np.where(fitting, cost, np.inf)
    cheapest = np.minimum.reduceat(cost, problem.first[:-1])
    return LowerBound(
        seconds=case.seconds,
        choice=case.choice,
        reduced=cost - cheapest[problem.table],
        root_seconds=float(cheapest.sum()) + problem.latency_seconds,
        # Collectives of their own are a small part of a step of so many tables.
        usable=np.ones(len(problem.options), dtype=bool),
        phase_seconds=case.phase_seconds,
        memory_price=np.zeros(len(problem.capacity)),
        root_memory_price=np.zeros(len(problem.capacity)),
        cases=1,
    )


def _worth_pricing(problem: PlacementProblem, fitting: Flags) -> Flags:
    """Options but for those that another of their table equals or beats in the seconds and the largest piece
    of every phase, and in the collectives that it needs: no case is quicker with these."""
    kinds = np.array([option.kind for option in problem.options])
    collectives = [np.isin(kinds, list(group)) for group in OPTIONAL_KINDS]
    figures = np.column_stack((problem.total[:, :NUM_PHASES], problem.peak[:, :NUM_PHASES], *collectives))
    kept = np.zeros(len(kinds), dtype=bool)
    for begin, end in problem.option_ranges():
        options = begin + np.flatnonzero(fitting[begin:end])
        kept[options[undominated(figures[options])]] = True
    return kept


@dataclass(frozen=True)
class _Case:
    solved: RelaxedPlan
    usable: Flags
    latency: float
    minimums: Floats
    caps: Floats


def _split(
    problem: PlacementProblem, relaxation: PlanRelaxation, case: _Case, deeper: bool
) -> tuple[int, float] | None:
    """The phase whose mixture has pieces farthest beyond its seconds, and a threshold between the two.

    `deeper` splits phases whose pieces fit, too."""
    solved = case.solved
    present = solved.mixture > _PRESENT
    largest = relaxation.peak[present].max(axis=0)
    for phase in np.flatnonzero(problem.weights).tolist():
        # Pieces that a phase has time for one by one may still not pack.
        reached = float(solved.phase_seconds[phase])
        if largest[phase] <= reached and reached > _COUNTS * solved.seconds:
            largest[phase] = relaxation.packing.needed_seconds(solved.mixture, phase, reached)
    if deeper:
        # Patterns know more the less a phase has.
        largest = np.maximum(largest, solved.phase_seconds * _LONGER)
    # Where a case says already how long a phase takes at most, it cannot be split above that.
    largest = np.minimum(largest, case.caps * (1 - _NARROW))
    excess = problem.weights * np.maximum(largest - solved.phase_seconds * (1 + 1e-6), 0.0)
    phase = int(np.argmax(excess))
    if excess[phase] <= 1e-9 * max(solved.seconds, 1e-30):
        return None
    low, high = max(float(case.solved.phase_seconds[phase]), 1e-30), float(largest[phase])
    return phase, (low + high) / 2


def _choice(problem: PlacementProblem, case: RelaxedPlan) -> Ints:
    """The largest share of each table's mixture; among equal ones the cheaper."""
    ranked = np.where(np.isfinite(case.reduced), case.mixture - 1e-9 * (case.reduced > 1e-15), -1.0)
    return np.array(
        [begin + int(np.argmax(ranked[begin:end])) for begin, end in problem.option_ranges()], dtype=np.int64
    )
