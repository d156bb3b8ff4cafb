"""The search for a solution: plans to begin with, local search from the best of them, then the exact one.

A `SearchPartitioner` is the last stage of `make_plan`. Where memory leaves no room for the usual starts it
packs by bytes instead (`packing.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megalith.sharding.planner.loads import solution_seconds
from megalith.sharding.planner.partition.choices import good_choices
from megalith.sharding.planner.partition.greedy import most_spread, place_balanced, table_wise_greedy
from megalith.sharding.planner.partition.karmarkar_karp import karmarkar_karp
from megalith.sharding.planner.partition.local_search import local_search
from megalith.sharding.planner.partition.many_workers import planned_for_many
from megalith.sharding.planner.partition.mip import solve_exactly
from megalith.sharding.planner.partition.packing import packed
from megalith.sharding.planner.partition.reinsertion import reinserted
from megalith.sharding.planner.search import Clock, Deadline
from megalith.sharding.planner.types import (
    FoundPlacement,
    LowerBound,
    Partitioner,
    PlacementProblem,
    PlacementSolution,
)

MOST_EXACT_SECONDS = 3.0
_TRIALS, _MOST_TRIALS = 2, 8
_TRIAL_SHARE = 0.2
"""Starts that are searched from, where searches end by themselves more of them, and the part of the time left
that each gets before the best gets the rest."""
_TIERED_STARTS = 0.08
"""Where tables may lie on slower memory, the time for plans to begin with."""
_FAR = 0.3
"""Above the bound, from where on these are not worth improving, and tables are put in and out instead."""
_REINSERTED = 0.9
"""When that ends."""
_MANY_WORKERS = 256
"""Beyond, `many_workers.py` makes the only start,"""
_LIMITED = 0.88
"""and takes this part of the time."""
_SEARCHED = 0.93
"""When the search ends, as a share of the time given."""
TOLERANCE = 2e-3
"""A plan this close to the bound is good enough to stop at."""
_Start = tuple[str, PlacementSolution]
"""What made it, and the solution."""


class SearchPartitioner(Partitioner):
    """Runs one algorithm, or "best" of all; local search follows unless `improve` is False."""

    def __init__(self, algorithm: str = "best", improve: bool = True) -> None:
        self.algorithm, self.improve = algorithm, improve

    def partition(
        self, problem: PlacementProblem, bound: LowerBound, clock: Clock, seconds: float
    ) -> FoundPlacement | None:
        """The best solution found by `seconds` of the clock; None if nothing fits."""
        # Where the bound took longer than it should, plans to begin with still get some time.
        enough = max(0.45 * seconds, clock.now() + 0.15 * seconds)
        tiers = any(option.tier for option in problem.options)
        if tiers:
            enough = min(enough, clock.now() + _TIERED_STARTS * seconds)
        many = problem.world_size > _MANY_WORKERS and self.algorithm == "best"
        starts = [] if many else _starts(problem, bound, self.algorithm, clock.after(enough))
        if many:
            # A search from there takes all the time that is left, and gets further than from several.
            placed = planned_for_many(
                problem, bound, clock.after(_LIMITED * seconds if self.improve else 0.0)
            )
            starts = [] if placed is None else [("reinsertion", placed)]
        if tiers and self.improve and self.algorithm in ("best", "mip"):
            least = min((solution_seconds(problem, start[1]) for start in starts), default=np.inf)
            if least > bound.seconds * (1 + _FAR):
                placed = reinserted(problem, bound, clock, _REINSERTED * seconds)
                if placed is not None and solution_seconds(problem, placed) < least:
                    starts = [("reinsertion", placed)]
        starts = starts or _tight_starts(problem, clock, seconds)
        if not starts:
            return None
        if self.improve:
            target = bound.seconds * (1 + TOLERANCE)
            starts = _improved(problem, starts, clock, seconds, target)
        name, best = min(starts, key=lambda start: solution_seconds(problem, start[1]))
        proven, best_seconds = bound.seconds, solution_seconds(problem, best)
        if self.algorithm in ("best", "mip") and best_seconds > proven * (1 + 1e-6):
            left = min(max(0.5, seconds - clock.now()), MOST_EXACT_SECONDS)
            exact = solve_exactly(problem, bound, best, None if clock.counted else left)
            if exact is not None:
                better, proven = exact[0], max(proven, exact[1])
                if self.algorithm == "mip" or solution_seconds(problem, better) < best_seconds * (1 - 1e-9):
                    name, best = "mip", better
        return FoundPlacement(best, proven, name)


def _tight_starts(problem: PlacementProblem, clock: Clock, seconds: float) -> list[_Start]:
    """A plan to begin with where memory is nearly full, rather late than refused."""
    tight = packed(problem, clock.after(clock.now() + seconds))
    if tight is not None:
        return [("packed", tight)]
    spread = place_balanced(problem, most_spread(problem), by_memory=True)
    return [] if spread is None else [("spread", spread)]


def _improved(
    problem: PlacementProblem, starts: list[_Start], clock: Clock, seconds: float, target: float
) -> list[_Start]:
    """Searches from the most promising starts for a while each, then from the best for the rest."""
    tried: list[_Start] = []
    hurried = False
    for number, (name, start) in enumerate(starts[:_MOST_TRIALS]):
        now = clock.now()
        left = _SEARCHED * seconds - now
        if number and (left <= 0 or (hurried and number >= _TRIALS)):
            break
        trial_end = clock.after(now + left * (1.0 if len(starts) == 1 else _TRIAL_SHARE))
        tried.append((f"{name} + local search", local_search(problem, start, trial_end, target)))
        hurried |= trial_end.passed
    # Starts that time left untried may be better than what was found from the others.
    name, best = min([*tried, *starts], key=lambda start: solution_seconds(problem, start[1]))
    return [(name, local_search(problem, best, clock.after(_SEARCHED * seconds), target))]


def _starts(problem: PlacementProblem, bound: LowerBound, algorithm: str, deadline: Deadline) -> list[_Start]:
    """Plans to begin with."""
    made: list[tuple[str, PlacementSolution | None]] = []
    if algorithm in ("best", "mip"):
        # Balanced plans come ranked by where a search from them should end; the quickest as it is may differ.
        good = [solution for _, solution in good_choices(problem, bound.usable, deadline, bound.memory_price)]
        good += [solution for solution in [place_balanced(problem, bound.choice)] if solution is not None]
        quickest = sorted(good, key=lambda solution: solution_seconds(problem, solution))
        made += [("balanced", solution) for solution in _distinct([*good[:1], *quickest[:1], *good[1:]])]
    if algorithm in ("best", "karmarkar_karp"):
        made.append(("karmarkar_karp", karmarkar_karp(problem, bound.choice)))
    if algorithm in ("best", "greedy"):
        made.append(("greedy", table_wise_greedy(problem)))
    usable = [(name, solution) for name, solution in made if solution is not None]
    if algorithm == "best":
        # On small problems any start may lead furthest, and each is searched in no time.
        first = usable[:2]
        rest = sorted(usable[2:], key=lambda start: solution_seconds(problem, start[1]))
        usable = [*first, *rest]
    return usable


def _distinct(solutions: Sequence[PlacementSolution]) -> list[PlacementSolution]:
    """Without those that choose the same options as an earlier one."""
    kept: dict[bytes, PlacementSolution] = {}
    for solution in solutions:
        kept.setdefault(solution.choice.tobytes(), solution)
    return list(kept.values())
