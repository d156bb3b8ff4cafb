"""Plans for about as many workers as tables: one or two blocks a worker, so imbalance is most of the gap.

Whatever is placed first, blocks of a half or two thirds of a worker leave corners that nothing fills. So some
tables, those where that costs least, are cut into small slices, which are placed last. Then every phase gets
a limit, and tables are taken out and put in again until no worker is beyond one (`insertion_state.py`). A
search that knows what to reach gets there in a fraction of the time of one that lowers the largest load
whatever it is.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.partition.greedy import place_balanced
from megalith.sharding.planner.partition.insertion_state import InsertionState
from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Floats,
    Ints,
    LowerBound,
    PlacementProblem,
    PlacementSolution,
)

_FILLERS = 0.1
"""Of the seconds of the longest phase, what tables in small slices take."""
_SLICE, _ELSEWHERE = 0.16, 0.5
"""How large a small slice may be, as a share of a worker's part of the longest phase, and of any other."""
_ABOVE = 0.08
"""What the limits leave room for to begin with, as a share of the bound."""
_CLOSER = 0.9
"""What is left of a phase's room whenever its limit is reached,"""
_FEW = 30
"""which it is when so few of 1,000 workers are beyond it."""
_ROUNDS = 50
"""Between two looks at the clock."""
_EXCHANGES = 2000
"""Blocks that are moved or swapped, or tables that are cut another way, before each round,"""
_SLACK = (1e-4, 3e-6)
"""and what that may cost, as a share of the bound: at first, and at the end."""
_WINDOW = 48
"""Workers that a table is tried on at a time."""
_OPTIONS, _SMALL = (20, 4), 0.5
"""Options of a table that are looked at: by their price, and by their price among those whose blocks take at
most this share of a worker's limits."""


def planned_for_many(
    problem: PlacementProblem, bound: LowerBound, deadline: Deadline
) -> PlacementSolution | None:
    """A plan made this way; None if tables find no room."""
    placed = [place_balanced(problem, choice) for choice in (with_fillers(problem, bound), bound.choice)]
    start = next((solution for solution in placed if solution is not None), None)
    return None if start is None else within_limits(problem, bound, start, deadline)


def with_fillers(problem: PlacementProblem, bound: LowerBound) -> Ints:
    """The options that the bound chose, but for some tables in small slices."""
    choice = bound.choice.copy()
    longest = int(np.argmax(problem.weights * bound.phase_seconds))
    seconds = np.maximum(bound.phase_seconds, problem.peak[choice, :NUM_PHASES].max(axis=0) * _SLICE)
    share = problem.peak[:, :NUM_PHASES] / np.maximum(seconds, 1e-30)
    kinds = np.array([option.kind for option in problem.options])
    small = (kinds == "column_wise") & (share[:, longest] <= _SLICE) & (share <= _ELSEWHERE).all(axis=1)
    small &= (problem.peak[:, NUM_PHASES:] <= problem.capacity).all(axis=1)
    cost = problem.total[:, :NUM_PHASES] @ problem.weights
    cheapest = np.where(small, cost, np.inf)
    finest = np.array(
        [begin + int(np.argmin(cheapest[begin:end])) for begin, end in problem.option_ranges()],
        dtype=np.int64,
    )
    dearer = (cheapest[finest] - cost[choice]) / np.maximum(problem.total[finest, longest], 1e-30)
    needed = _FILLERS * float(problem.total[choice, longest].sum())
    for table in np.argsort(dearer, kind="stable").tolist():
        if needed <= 0 or not np.isfinite(dearer[table]):
            break
        if problem.width[choice[table]] == 1:
            choice[table] = finest[table]
            needed -= float(problem.total[finest[table], longest])
    return choice


def within_limits(
    problem: PlacementProblem, bound: LowerBound, start: PlacementSolution, deadline: Deadline
) -> PlacementSolution:
    """The best plan met on the way to ever lower limits."""
    room = first_room(problem, bound)
    share = problem.peak[:, :NUM_PHASES] / np.maximum(bound.phase_seconds + room, 1e-30)
    small = np.asarray((share <= _SMALL).all(axis=1))
    state = InsertionState(problem, bound.reduced, bound.usable, _OPTIONS, start, small)
    best, best_seconds = start, state.seconds()
    few = _FEW * problem.world_size / 1000
    begin = deadline.clock.now()
    while (now := deadline.clock.now()) < deadline.seconds:
        limits = bound.phase_seconds + room
        part = (now - begin) / (deadline.seconds - begin)
        slack = bound.seconds * _SLACK[0] ** (1 - part) * _SLACK[1] ** part
        exchanges = (_EXCHANGES, slack)
        state.improve(limits, _ROUNDS, dearness=1.0, window=_WINDOW, others=(2, 1), exchanges=exchanges)
        seconds = state.seconds()
        if seconds < best_seconds:
            best, best_seconds = state.solution(), seconds
        reached = (state.phases > limits).sum(axis=0) <= few
        room = np.where(reached, _CLOSER * room, room)
    return best


def first_room(problem: PlacementProblem, bound: LowerBound) -> Floats:
    """What limits are above the phases of the bound: more in proportion for short phases, which vary more
    from worker to worker."""
    seconds = problem.weights * bound.phase_seconds
    share: Floats = np.cbrt(np.maximum(seconds, 1e-30))
    return _ABOVE * float(seconds.sum()) * share / float(share.sum())
