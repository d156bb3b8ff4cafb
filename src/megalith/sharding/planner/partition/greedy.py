"""Greedy: the largest first, each onto the least loaded worker that has room.

`table_wise_greedy` is what is meant by greedy when others are compared with it, and what TorchRec and Neo do
by default: whole tables, ordered by the seconds they cost, each onto the worker with the fewest seconds so
far; a table too large for one worker takes the cheapest option whose pieces fit. `place_balanced` looks at
the phases apart: each block, largest first, goes where it adds least to the 16th powers of the loads.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.loads import add_blocks, loads_of
from megalith.sharding.planner.types import NUM_PHASES, Floats, Ints, PlacementProblem, PlacementSolution

_FULL = 3.0
"""A block that fills its worker's memory is as hard to place as one of three times the mean seconds."""


def table_wise_greedy(problem: PlacementProblem) -> PlacementSolution | None:
    """Whole tables onto the least loaded workers; None if they find no room."""
    seconds = problem.total[:, :NUM_PHASES] @ problem.weights
    small = (problem.peak[:, NUM_PHASES:] <= problem.capacity).all(axis=1)
    choice = np.empty(problem.num_tables, dtype=np.int64)
    for table in range(problem.num_tables):
        options = np.array(problem.options_of(table), dtype=np.int64)
        usable = options[np.asarray(small)[options]]
        if not len(usable):
            return None
        whole = [option for option in usable if problem.options[option].kind == "table_wise"]
        choice[table] = whole[0] if whole else usable[np.argmin(seconds[usable])]
    return place_greedily(problem, choice)


def place_greedily(problem: PlacementProblem, choice: Ints) -> PlacementSolution | None:
    """Groups for every block of the chosen options, largest first; None if one finds no room."""
    loads = np.zeros((problem.world_size, problem.shards.shape[1]))
    groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
    size = problem.total[choice, :NUM_PHASES] @ problem.weights
    for table in _ordered(problem, choice, size):
        option = int(choice[table])
        blocks = problem.blocks(option)
        placed = least_loaded(problem, loads, blocks, problem.num_groups(option))
        if placed is None:
            return None
        groups[table] = placed
        add_blocks(loads, blocks, placed)
    return PlacementSolution(choice.copy(), groups)


def place_balanced(
    problem: PlacementProblem, choice: Ints, by_memory: bool = False
) -> PlacementSolution | None:
    """Like `place_greedily`, phase by phase; by falling bytes instead of seconds where memory is short."""
    loads = np.zeros((problem.world_size, problem.shards.shape[1]))
    groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
    mean = np.maximum(problem.total[choice, :NUM_PHASES].sum(axis=0) / problem.world_size, 1e-30)
    value = problem.weights * mean
    share = (problem.peak[choice, NUM_PHASES:] / np.maximum(problem.capacity, 1)).max(axis=1)
    # Blocks that are large in any phase, or in memory, first, whatever the phase is worth: they are hard to
    # place.
    hard = ((problem.peak[choice, :NUM_PHASES] / mean) ** 2).sum(axis=1) + (_FULL * share) ** 2
    size = share if by_memory else hard
    for table in _ordered(problem, choice, size):
        option = int(choice[table])
        blocks, num_groups = problem.blocks(option), problem.num_groups(option)
        width = blocks.shape[1]
        if num_groups < len(blocks):
            return None
        view = loads[: num_groups * width].reshape(num_groups, width, -1)
        # The first variant is the larger one; a group with room for it has room for both.
        after = view + blocks[0]
        added = _sixteenth(after[..., :NUM_PHASES] / mean) - _sixteenth(view[..., :NUM_PHASES] / mean)
        gain = (added @ value).sum(axis=1)
        full = (after[..., NUM_PHASES:] > problem.capacity).any(axis=(1, 2))
        gain[full] = np.inf
        if by_memory:
            gain = np.where(full, np.inf, (after[..., NUM_PHASES:] / problem.capacity).max(axis=(1, 2)))
        placed = np.argsort(gain, kind="stable")[: len(blocks)]
        if not np.isfinite(gain[placed[-1]]):
            return None
        groups[table] = placed
        add_blocks(loads, blocks, placed)
    return PlacementSolution(choice.copy(), groups)


def least_loaded(problem: PlacementProblem, loads: Floats, blocks: Floats, num_groups: int) -> Ints | None:
    """Distinct groups for the blocks, those with the fewest seconds that have room."""
    width = blocks.shape[1]
    if num_groups < len(blocks):
        return None
    view = loads[: num_groups * width].reshape(num_groups, width, -1)
    seconds = (view[:, :, :NUM_PHASES] @ problem.weights).max(axis=1)
    # The first variant is the larger one; a group with room for it has room for both.
    room = (view[:, :, NUM_PHASES:] + blocks[0][:, NUM_PHASES:] <= problem.capacity).all(axis=(1, 2))
    free = np.flatnonzero(room)
    if len(free) < len(blocks):
        return None
    return np.asarray(free[np.argsort(seconds[free], kind="stable")[: len(blocks)]], dtype=np.int64)


def make_room(problem: PlacementProblem, solution: PlacementSolution) -> PlacementSolution | None:
    """Moves blocks off workers that hold more than they can, to those with the fewest seconds; None if that
    does not end."""
    solution = solution.copy()
    loads = loads_of(problem, solution)
    for _ in range(4 * problem.num_tables):
        over = (loads[:, NUM_PHASES:] - problem.capacity) / np.maximum(problem.capacity, 1)
        worker = int(np.argmax(over.max(axis=1)))
        if over[worker].max() <= 0:
            return solution
        tier = NUM_PHASES + int(np.argmax(over[worker]))
        if not _move_largest(problem, solution, loads, worker, tier):
            return None
    return None


def _move_largest(
    problem: PlacementProblem, solution: PlacementSolution, loads: Floats, worker: int, tier: int
) -> bool:
    """Moves the worker's largest block that finds room elsewhere."""
    held = [
        (float(problem.blocks(int(option))[number, 0, tier]), table, number)
        for table, option in enumerate(solution.choice)
        if problem.width[option] == 1
        for number in np.flatnonzero(solution.groups[table] == worker)
    ]
    seconds = loads[:, :NUM_PHASES] @ problem.weights
    for size, table, number in sorted(held, reverse=True):
        block = problem.blocks(int(solution.choice[table]))[number, 0]
        room = (loads[:, NUM_PHASES:] + block[NUM_PHASES:] <= problem.capacity).all(axis=1)
        room[solution.groups[table]] = False
        if size > 0 and room.any():
            target = int(np.argmin(np.where(room, seconds, np.inf)))
            loads[worker] -= block
            loads[target] += block
            solution.groups[table][number] = target
            return True
    return False


def _ordered(problem: PlacementProblem, choice: Ints, size: Floats) -> list[int]:
    """Largest first, but before them what is on all workers or a whole node: it cannot be chosen around."""
    order: list[int] = np.lexsort((-size, -problem.width[choice])).tolist()
    return order


def _sixteenth(values: Floats) -> Floats:
    powered = values * values
    for _ in range(3):
        powered *= powered
    return powered


def most_spread(problem: PlacementProblem) -> Ints:
    """For each table the option with the smallest share of any tier on its fullest worker: what to try when
    nothing else fits."""
    share = (problem.peak[:, NUM_PHASES:] / np.maximum(problem.capacity, 1)).max(axis=1)
    return np.array(
        [begin + int(np.argmin(share[begin:end])) for begin, end in problem.option_ranges()], dtype=np.int64
    )
