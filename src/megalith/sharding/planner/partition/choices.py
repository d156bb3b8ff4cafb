"""Chooses an option for each table before blocks are placed: the cheapest with pieces small enough.

How small is small enough? A piece of nearly a worker's mean load leaves no room to fill the other phases
evenly; pieces that are much smaller cost more in all. So caps on pieces, a multiple of each phase's mean, are
tried: from one start each phase's cap is lowered and raised as long as the placed plan gets better.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.loads import loads_of, step_seconds
from megalith.sharding.planner.partition.greedy import place_balanced
from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    PlacementProblem,
    PlacementSolution,
)

_START = 0.8
_FACTORS = (0.7, 1.4)
_ROUNDS = 4
_DEARER = (1.2, 1.5, 2.0, 4.0)
_EVENED_OUT = 0.4
"""Of the seconds that workers wait for the slowest, what local search saves on large problems."""


def capped_choice(
    problem: PlacementProblem, usable: Flags, caps: Floats, price: Floats | None = None
) -> Ints:
    """For each table the cheapest usable option; pieces beyond `caps` cost what they are beyond them.

    `price` is seconds for each byte of the tiers: what memory is worth where it is short.
    """
    cost = problem.total[:, :NUM_PHASES] @ problem.weights / problem.world_size
    if price is not None:
        cost = cost + problem.total[:, NUM_PHASES:] @ price
    fitting = np.asarray(np.all(problem.peak[:, NUM_PHASES:] <= problem.capacity, axis=1)) & usable
    # A piece beyond its cap makes the phase longer by as much.
    beyond = np.maximum(problem.peak[:, :NUM_PHASES] - caps, 0.0) @ problem.weights
    ranked = np.where(fitting, cost + beyond, np.inf)
    return np.array(
        [begin + int(np.argmin(ranked[begin:end])) for begin, end in problem.option_ranges()], dtype=np.int64
    )


def good_choices(
    problem: PlacementProblem, usable: Flags, deadline: Deadline, price: Floats | None = None
) -> list[tuple[float, PlacementSolution]]:
    """Placed plans, best first, as starts for a local search: by their steps, less the part of the waiting
    that such a search takes away."""
    free = capped_choice(problem, usable, np.full(NUM_PHASES, np.inf), price)
    mean = problem.total[free, :NUM_PHASES].sum(axis=0) / problem.world_size
    tried: dict[tuple[float, ...], float] = {}
    starts: list[tuple[float, PlacementSolution]] = []

    def attempt(factors: Floats) -> float:
        key = tuple(np.round(factors, 6))
        if key not in tried:
            # A phase that costs nothing needs no cap.
            caps = np.where(mean > 0, factors * np.maximum(mean, 1e-30), np.inf)
            placed = place_balanced(problem, capped_choice(problem, usable, caps, price))
            tried[key] = np.inf
            if placed is not None:
                loads = loads_of(problem, placed)
                seconds = step_seconds(problem, loads, placed)
                waiting = float(problem.weights @ (loads.max(axis=0) - loads.mean(axis=0))[:NUM_PHASES])
                tried[key] = seconds - _EVENED_OUT * waiting
                starts.append((tried[key], placed))
        return tried[key]

    factors = np.full(NUM_PHASES, _START)
    best = attempt(factors)
    attempt(np.full(NUM_PHASES, np.inf))
    if not starts and price is not None and price.any():
        # Blocks do not fill memory as evenly as the bound thinks: let it seem dearer until they fit.
        for dearer in _DEARER:
            price = dearer * price
            tried.clear()
            best = attempt(factors)
            if starts:
                break
    for _ in range(_ROUNDS):
        before = best
        for phase in range(NUM_PHASES):
            for factor in _FACTORS:
                if deadline.passed:
                    break
                changed = factors.copy()
                changed[phase] *= factor
                seconds = attempt(changed)
                if seconds < best:
                    best, factors = seconds, changed
        if best >= before:
            break
    return sorted(starts, key=lambda pair: pair[0])
