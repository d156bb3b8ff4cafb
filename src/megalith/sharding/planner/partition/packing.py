"""Plans where memory is nearly full: first which memory each table goes to, then as few cuts as fit.

Prices alone send tables that are alike to the same memory, though only some of them fit there. So the linear
program is dived into: of the tables that it splits between options the largest is given one of them, and the
program solved again, until none is split. What it chose then fits all workers together, but blocks may not
fill each worker: tables that find no room are cut finer, step by step, until they do. Only cuts that waste no
memory take part: equal rows, and few slices where each keeps optimizer state of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from megalith.sharding.planner.bound.relaxation import PlanRelaxation, RelaxedPlan
from megalith.sharding.planner.loads import add_blocks, solution_seconds
from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    PlacementProblem,
    PlacementSolution,
)

_WHOLE = 1e-6
_FILLED = (0.95, 0.98, 1.0)
"""Shares of the memory that tables are chosen for, in turn."""
_WASTED = 1.01
"""Bytes of an option over the least that its table needs."""
_ROUNDS = 200


def packed(problem: PlacementProblem, deadline: Deadline) -> PlacementSolution | None:
    """A plan that fits; None if none was found."""
    sparing, best = _sparing(problem), None
    for filled in _FILLED:
        # With some memory left over blocks are easier to place, and need fewer cuts.
        roomy = replace(problem, capacity=filled * problem.capacity)
        choice = _dive(roomy, PlanRelaxation(roomy), sparing, deadline)
        solution = None if choice is None else _cut_until_placed(problem, choice, sparing)
        if solution is not None:
            seconds = solution_seconds(problem, solution)
            if best is None or seconds < best[0]:
                best = seconds, solution
        if deadline.passed:
            break
    return None if best is None else best[1]


def _sparing(problem: PlacementProblem) -> Flags:
    """Options that take hardly more bytes than the least on their memory, the same on each worker."""
    size = problem.total[:, NUM_PHASES:].sum(axis=1)
    least: dict[tuple[int, int, float], float] = {}
    keys = [
        (int(table), option.tier, option.cached)
        for table, option in zip(problem.table, problem.options, strict=True)
    ]
    for key, needed in zip(keys, size.tolist(), strict=True):
        least[key] = min(least.get(key, needed), needed)
    even = np.array([not option.row_cut for option in problem.options])
    return even & (size <= _WASTED * np.array([least[key] for key in keys]))


def _dive(
    problem: PlacementProblem, relaxation: PlanRelaxation, usable: Flags, deadline: Deadline
) -> Ints | None:
    """One option for each table, which together fit all workers; None if none was found."""
    tiers = np.array([option.tier for option in problem.options])
    size = problem.total[:, NUM_PHASES:].sum(axis=1)
    minimums, caps = np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)
    relaxed = relaxation.solve(minimums, caps, usable)
    while relaxed is not None:
        shares = _tier_shares(problem, relaxed, tiers)
        split = np.flatnonzero(shares.max(axis=1) < 1 - _WHOLE)
        if not len(split) or deadline.passed:
            return _choice(problem, relaxed)
        table = int(split[np.argmax(size[problem.first[split]])])
        options = np.array(problem.options_of(table), dtype=np.int64)
        relaxed = None
        for tier in np.argsort(-shares[table], kind="stable"):
            fixed = usable.copy()
            # How it is cut, and how much of it is cached, stays open.
            fixed[options[tiers[options] != tier]] = False
            relaxed = relaxation.solve(minimums, caps, fixed)
            if relaxed is not None:
                usable = fixed
                break
    return None


def _tier_shares(problem: PlacementProblem, relaxed: RelaxedPlan, tiers: Ints) -> Floats:
    """[tables, tiers]: how much of each table the program puts on each memory."""
    shares = np.zeros((problem.num_tables, len(problem.capacity)))
    np.add.at(shares, (problem.table, tiers), relaxed.mixture)
    return shares


def _choice(problem: PlacementProblem, relaxed: RelaxedPlan) -> Ints:
    """Of the options in each table's mixture the largest share, among those that cache least."""
    chosen = []
    for table in range(problem.num_tables):
        mixed = [option for option in problem.options_of(table) if relaxed.mixture[option] > _WHOLE]
        cached = [(problem.options[option].cached, -relaxed.mixture[option]) for option in mixed]
        chosen.append(mixed[cached.index(min(cached))])
    return np.array(chosen, dtype=np.int64)


def _cut_until_placed(problem: PlacementProblem, choice: Ints, usable: Flags) -> PlacementSolution | None:
    """The chosen options on workers; where there is no room for one, a finer cut of the same table."""
    share = (problem.peak[:, NUM_PHASES:] / np.maximum(problem.capacity, 1)).max(axis=1)
    seconds = np.where(usable, problem.total[:, :NUM_PHASES] @ problem.weights, np.inf)
    choice = choice.copy()
    for _ in range(_ROUNDS):
        solution, without = _placed(problem, choice, share)
        if not without:
            return solution
        finer = {table: _finer(problem, int(choice[table]), share, seconds) for table in without}
        if not any(finer.values()):
            # They are as fine as can be: the largest blocks of the others stand in their option.
            coarse = np.argsort(-share[choice], kind="stable").tolist()
            options = ((table, _finer(problem, int(choice[table]), share, seconds)) for table in coarse)
            finer = dict([next((cut for cut in options if cut[1]), (0, None))])
        if not any(finer.values()):
            return None
        for table, option in finer.items():
            choice[table] = option or choice[table]
    return None


def _finer(problem: PlacementProblem, option: int, share: Floats, seconds: Floats) -> int | None:
    """The cheapest option of the same table and memory whose largest block is at most half of this one's."""
    memory = (problem.options[option].tier, problem.options[option].cached)
    options = np.array(problem.options_of(int(problem.table[option])), dtype=np.int64)
    finer = [
        candidate
        for candidate in options[share[options] <= 0.5 * share[option]].tolist()
        if (problem.options[candidate].tier, problem.options[candidate].cached) == memory
        and np.isfinite(seconds[candidate])
    ]
    return min(finer, key=lambda candidate: float(seconds[candidate])) if finer else None


def _placed(problem: PlacementProblem, choice: Ints, share: Floats) -> tuple[PlacementSolution, list[int]]:
    """Blocks where they fill memory most evenly, wide and large ones first, and tables without room."""
    loads = np.zeros((problem.world_size, problem.shards.shape[1]))
    groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
    without = []
    for table in np.lexsort((-share[choice], -problem.width[choice])).tolist():
        option = int(choice[table])
        blocks, num_groups = problem.blocks(option), problem.num_groups(option)
        width = blocks.shape[1]
        view = loads[: num_groups * width, NUM_PHASES:].reshape(num_groups, width, -1)
        # The first variant is the larger one; a group with room for it has room for both.
        fullest = ((view + blocks[0][:, NUM_PHASES:]) / problem.capacity).max(axis=(1, 2))
        chosen = np.argsort(fullest, kind="stable")[: len(blocks)]
        if len(chosen) < len(blocks) or fullest[chosen[-1]] > 1:
            without.append(table)
            continue
        groups[table] = chosen
        add_blocks(loads, blocks, chosen)
    return PlacementSolution(choice.copy(), groups), without
