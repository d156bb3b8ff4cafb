"""How much of tables on slower memory is cached: as little as can be at first, then as room is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from megalith.sharding.planner.loads import loads_of
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    PlacementProblem,
    PlacementSolution,
)

_EVEN = 1e-3
"""What seconds of any worker count for, against those of the slowest."""


def smallest_caches(problem: PlacementProblem) -> Flags:
    """Options with the smallest cache that there is of their tier, and those without one."""
    cached = np.array([option.cached for option in problem.options])
    tier = np.array([option.tier for option in problem.options])
    small = tier == 0
    for slower in range(1, len(problem.capacity)):
        here = tier == slower
        small |= here & (cached <= cached[here].min(initial=np.inf))
    return np.asarray(small)


def grown_caches(problem: PlacementProblem, solution: PlacementSolution) -> PlacementSolution:
    """The same plan with larger caches where there is room, those first that relieve most for their bytes."""
    larger = _larger_caches(problem)
    solution = solution.copy()
    loads = loads_of(problem, solution)
    while True:
        top = np.maximum(loads[:, :NUM_PHASES].max(axis=0), 1e-30)
        growths = [
            growth
            for table, option in enumerate(solution.choice.tolist())
            if option in larger
            for growth in _growths(problem, solution, loads, top, table, larger[option])
        ]
        if not growths:
            return solution
        _, table, option, workers, change = max(growths, key=lambda growth: growth[0])
        solution.choice[table] = option
        loads[workers] += change


def _larger_caches(problem: PlacementProblem) -> dict[int, int]:
    """Of each option behind a cache, the same with the next larger one."""
    alike: dict[tuple[object, ...], list[tuple[float, int]]] = {}
    tables = problem.table.tolist()
    for number, option in enumerate(problem.options):
        if option.tier:
            key = (tables[number], option.kind, option.columns, option.row_cut, option.parts, option.tier)
            alike.setdefault(key, []).append((option.cached, number))
    larger: dict[int, int] = {}
    for shares in alike.values():
        rising = [number for _, number in sorted(shares)]
        larger.update(pairwise(rising))
    return larger


def _growths(
    problem: PlacementProblem,
    solution: PlacementSolution,
    loads: Floats,
    top: Floats,
    table: int,
    option: int,
) -> Iterator[tuple[float, int, int, Ints, Floats]]:
    """What a larger cache of a table would relieve for its bytes, if there is room for it."""
    now, width = int(solution.choice[table]), int(problem.width[option])
    workers = (solution.groups[table][:, None] * width + np.arange(width)).ravel()
    change = (problem.blocks(option) - problem.blocks(now)).reshape(-1, loads.shape[1])
    before, after = loads[workers], loads[workers] + change
    if not (after[:, NUM_PHASES:] > problem.capacity).any():
        value = problem.weights * top
        relieved = ((before[:, :NUM_PHASES] / top) ** 8 - (after[:, :NUM_PHASES] / top) ** 8) @ value
        saved = -(change[:, :NUM_PHASES] @ problem.weights)
        gain = float(relieved.sum() + _EVEN * saved.sum())
        yield gain / float(change[:, NUM_PHASES].sum()), table, option, workers, change
