"""Plans where memory is short: tables are put in one by one, and some are taken out and put in again.

Each table takes, of the options that the linear program prices lowest and the groups that have room, what
costs least: the price of the option, as the program knows it (seconds, bytes and packing of all workers), and
what its blocks add to busy workers. Large tables come first. Where the first ones go decides which options
fit for the others, and the prices say nothing of that: so many plans are begun, with memory dearer and phases
longer than the program has them, by numbers drawn at random. Each is improved for a moment, as how quick it
is to begin with says little of where that ends: a few tables at a time are taken out and put in again, and
stay if that is cheaper. Caches grow into what is left of the best at the end.

Most plans are begun with blocks that span a node alone: all workers of a node then have the same room left,
where slices on single workers leave each another corner that no block of a node fits into.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megalith.sharding.planner.loads import solution_seconds
from megalith.sharding.planner.partition.caches import grown_caches
from megalith.sharding.planner.partition.insertion_state import InsertionState
from megalith.sharding.planner.search import Clock, Deadline
from megalith.sharding.planner.types import Flags, LowerBound, PlacementProblem, PlacementSolution

_DEARER, _LONGER, _CROWDED = (0.0, 1.1), (1.1, 1.5), (0.15, 0.8)
"""How much dearer memory is taken to be than the program says, the phases as a multiple of its, and what a
worker at these costs, as a multiple of its part. The program fills memory to the last byte, which blocks do
not."""
_SMALLER = (0.02, 0.05, 0.1)
"""Every other plan is begun with caches up to one of these shares."""
_ANY_BLOCKS = 12
"""Every so many-th takes any blocks, the others those that span a node, where there are such."""
_STARTS, _MOST_STARTS = 6, 200
"""Plans that are begun at least and at most, whatever the deadline says."""
_OPTIONS = (120, 40)
"""Options of a table that these look at: by their price, and by their price among those of small blocks."""
_PROMISING = 1.2
"""Above the quickest that was begun, from where on one is not worth improving."""
_GROWING = 1.1
"""Above the quickest that was improved, from where on no larger caches make up for it."""
_STARTING = 0.9
"""Of the time, what they may take, improved ones included."""
_ROUNDS = 200
"""Between two looks at the clock."""
_SHORT, _LONG = 4, 20
"""Looks that are given to a plan: to each that was begun, where most of the gain comes in the first ones, and
without a quicker plan to the best of them."""
_HALFWAY = 0.5
"""The limits that are aimed at, between the mean and the largest load of each phase."""
_SLACK = 2.5e-5
"""Of the step, what a round may cost."""


def reinserted(
    problem: PlacementProblem, bound: LowerBound, clock: Clock, seconds: float
) -> PlacementSolution | None:
    """A plan made this way by `seconds` of the clock; None if tables find no room."""
    now = clock.now()
    starting = clock.after(now + _STARTING * max(0.0, seconds - now))
    best, grown, quickest = None, None, np.inf
    best_seconds, grown_seconds = np.inf, np.inf
    for begun_seconds, start, usable in begun_plans(problem, bound, starting):
        quickest = min(quickest, begun_seconds)
        if begun_seconds > _PROMISING * quickest:
            continue
        solution = _improved(problem, bound, start, usable, starting, _SHORT)
        improved_seconds = solution_seconds(problem, solution)
        if improved_seconds > _GROWING * best_seconds:
            continue
        best_seconds = min(best_seconds, improved_seconds)
        larger = grown_caches(problem, solution)
        if (larger_seconds := solution_seconds(problem, larger)) < grown_seconds:
            best, grown, grown_seconds = solution, larger, larger_seconds
    if best is None:
        return None
    last = grown_caches(problem, _improved(problem, bound, best, bound.usable, clock.after(seconds), _LONG))
    return grown if solution_seconds(problem, last) > grown_seconds else last


def begun_plans(
    problem: PlacementProblem, bound: LowerBound, deadline: Deadline
) -> Iterator[tuple[float, PlacementSolution, Flags]]:
    """Plans to begin with, how long their steps take, and the blocks that they are made of."""
    draw = np.random.default_rng(0)
    of_nodes = bound.usable & (problem.width > 1)
    spanning = bool(np.logical_or.reduceat(of_nodes, problem.first[:-1]).all())
    for number in range(_MOST_STARTS):
        if number >= _STARTS and deadline.passed:
            break
        dearer = draw.uniform(*_DEARER, len(problem.capacity)) * bound.root_memory_price
        longer, crowded = draw.uniform(*_LONGER, len(problem.weights)), draw.uniform(*_CROWDED)
        largest = float(draw.choice(_SMALLER)) if number % 2 else 1.0
        price = bound.reduced + problem.total[:, len(problem.weights) :] @ dearer
        blocks = of_nodes if spanning and (number + 1) % _ANY_BLOCKS else bound.usable
        usable = blocks & _cached_at_most(problem, largest)
        least = np.minimum.reduceat(np.where(usable, price, np.inf), problem.first[:-1])
        if not np.isfinite(least).all():
            continue
        state = InsertionState(problem, price - least[problem.table], usable, _OPTIONS)
        if state.fill(longer * bound.phase_seconds, crowded):
            yield state.seconds(), state.solution(), blocks


def _cached_at_most(problem: PlacementProblem, largest: float) -> Flags:
    return np.array([not option.tier or option.cached <= largest for option in problem.options])


def _improved(
    problem: PlacementProblem,
    bound: LowerBound,
    start: PlacementSolution,
    usable: Flags,
    deadline: Deadline,
    patience: int,
) -> PlacementSolution:
    """Takes tables out and puts them in again until the deadline, or until so many looks found nothing."""
    state = InsertionState(problem, bound.reduced, usable, start=start)
    best, best_seconds = start, state.seconds()
    looks = 0
    while looks < patience and not deadline.passed:
        mean, largest = state.phases.mean(axis=0), state.phases.max(axis=0)
        limits = mean + _HALFWAY * (largest - mean)
        state.improve(limits, _ROUNDS, dearness=1.0, slack=_SLACK * best_seconds)
        seconds = state.seconds()
        looks += 1
        if seconds < best_seconds:
            looks = 0
            best, best_seconds = state.solution(), seconds
    return best
