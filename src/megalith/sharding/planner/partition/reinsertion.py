"""Plans where memory is short: tables are put in one by one, and some are taken out and put in again.

Each table takes, of the options that the linear program prices lowest and the groups that have room, what
costs least: the price of the option, as the program knows it (seconds, bytes and packing of all workers), and
what its blocks add to busy workers. Large tables come first. What is in the way of a better plan is rarely
one table; so a few at a time, drawn from the busiest workers and at random, are taken out and put in again,
and stay if that is cheaper. Caches begin as small as can be and grow into what is left (`grown_caches`): with
large ones the first tables would leave no room for the last.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.bound.relaxation import PlanRelaxation
from megalith.sharding.planner.loads import add_blocks, loads_of, solution_seconds, step_seconds
from megalith.sharding.planner.partition.caches import grown_caches, smallest_caches
from megalith.sharding.planner.search import Clock, Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    LowerBound,
    PlacementProblem,
    PlacementSolution,
)

_PROMISING, _FINE = 40, 24
"""Options of a table that are looked at: by their price, and by their price among those with small blocks."""
_SMALL = 0.1
"""Of a worker's memory, what a small block takes at most."""
_CROWDED = 0.5
"""What a worker at the seconds aimed at costs, as a multiple of its part of the phase."""
_FILLED = 0.05
"""What a worker whose memory is full costs, as a share of its part of the step."""
_STARTS = ((0.0, 1.0), (0.25, 1.0), (1.0, 1.0), (1.0, 1.2))
"""How much dearer memory is taken to be than the program says, and the seconds aimed at as a multiple of its.
The program fills memory to the last byte, which blocks do not."""
_TRIED = 2
"""Starts that are improved."""
_TAKEN_OUT, _MANY_OUT, _OFTEN = (2, 6), (8, 20), 0.25
"""How many tables are taken out at a time, now and then more of them."""
_VAIN = 400
_RAISED = 20
"""Changes after which the seconds aimed at are set anew."""


def reinserted(
    problem: PlacementProblem, bound: LowerBound, clock: Clock, seconds: float
) -> PlacementSolution | None:
    """A plan made this way by `seconds` of the clock; None if tables find no room."""
    small = smallest_caches(problem) & bound.usable
    relaxed = PlanRelaxation(problem).solve(np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf), small)
    if relaxed is None:
        return None
    starts = []
    for number, (dearer, longer) in enumerate(_STARTS):
        price = relaxed.reduced + problem.total[:, NUM_PHASES:] @ (dearer * relaxed.memory_price)
        state = _Insertion(problem, price, longer * relaxed.phase_seconds, small)
        if state.fill(state.largest_first(range(problem.num_tables))):
            starts.append((state.seconds(), number, state))
    found = []
    for number, (_, _, state) in enumerate(sorted(starts)[:_TRIED]):
        now = clock.now()
        end = clock.after(now + max(0.0, seconds - now) / (2 * _TRIED - number))
        solution = grown_caches(problem, _improved(state, end))
        found.append((solution_seconds(problem, solution), number, solution))
    if not found:
        return None
    _, _, best = min(found)
    state = _Insertion(problem, bound.reduced, bound.phase_seconds, bound.usable)
    state.start(best)
    return grown_caches(problem, _improved(state, clock.after(seconds)))


def _improved(state: _Insertion, deadline: Deadline) -> PlacementSolution:
    """Takes tables out and puts them in again, until the deadline or until that is in vain."""
    draw = np.random.default_rng(0)
    best, best_seconds = state.solution(), state.seconds()
    state.aim()
    cost, vain, changes = state.cost(), 0, 0
    while vain < _VAIN and not deadline.passed:
        taken = state.draw_tables(draw)
        before = state.take_out(taken)
        after = state.cost() if state.fill(state.largest_first(taken)) else np.inf
        if after > cost * (1 + 1e-12):
            state.restore(taken, before)
            vain += 1
            continue
        vain = 0 if after < cost * (1 - 1e-4) else vain + 1
        cost, changes = after, changes + 1
        seconds = state.seconds()
        if seconds < best_seconds:
            best, best_seconds = state.solution(), seconds
        if changes % _RAISED == 0:
            state.aim()
            cost = state.cost()
    return best


class _Insertion:
    """Tables that are in the plan, where, and what workers have of them."""

    def __init__(self, problem: PlacementProblem, price: Floats, target: Floats, usable: Flags) -> None:
        self.problem, self.price = problem, price
        self.loads = np.zeros((problem.world_size, problem.shards.shape[1]))
        self.choice: Ints = np.full(problem.num_tables, -1, dtype=np.int64)
        self.groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
        self._aim_at(target)
        share = (problem.peak[:, NUM_PHASES:] / np.maximum(problem.capacity, 1)).max(axis=1)
        self._fitting = np.asarray(share <= 1.0) & usable & np.isfinite(price)
        self._size = problem.total[:, NUM_PHASES:].sum(axis=1)
        self._promising = [self._best_options(table, share) for table in range(problem.num_tables)]

    def start(self, solution: PlacementSolution) -> None:
        """Begins with a plan."""
        copy = solution.copy()
        self.choice, self.groups = copy.choice, copy.groups
        self.loads = loads_of(self.problem, copy)

    def aim(self) -> None:
        """Aims at the seconds of the slowest workers."""
        self._aim_at(self.loads[:, :NUM_PHASES].max(axis=0))

    def _aim_at(self, target: Floats) -> None:
        target = np.maximum(target, 1e-3 * target.sum() + 1e-30)
        value = _CROWDED * self.problem.weights * target
        # Memory that is filled evenly leaves room for caches everywhere.
        filled = np.full(len(self.problem.capacity), _FILLED * float(self.problem.weights @ target))
        self.target = np.concatenate((target, np.maximum(self.problem.capacity, 1.0)))
        self.value = np.concatenate((value, filled)) / self.problem.world_size

    def cost(self) -> float:
        """What the plan costs: prices of its options, and workers that are near the seconds aimed at."""
        crowded = _eighth(self.loads / self.target) @ self.value
        return float(crowded.sum() + self.price[self.choice].sum())

    def _best_options(self, table: int, share: Floats) -> Ints:
        options = np.array(self.problem.options_of(table), dtype=np.int64)
        options = options[self._fitting[options]]
        ranked = options[np.argsort(self.price[options], kind="stable")]
        fine = ranked[share[ranked] <= _SMALL][:_FINE]
        return np.union1d(ranked[:_PROMISING], fine)

    def largest_first(self, tables: range | Ints) -> list[int]:
        """Tables by falling bytes, and where these are alike by their lookups."""
        numbers = np.array(tables, dtype=np.int64)
        options = self.problem.first[numbers]
        seconds = self.problem.total[options, :NUM_PHASES].sum(axis=1)
        order: list[int] = numbers[np.lexsort((-seconds, -self._size[options]))].tolist()
        return order

    def fill(self, tables: list[int]) -> bool:
        """Puts tables in; says whether all found room."""
        for table in tables:
            placed = self._best(self._promising[table])
            if placed is None:
                options = np.array(self.problem.options_of(table), dtype=np.int64)
                placed = self._best(options[self._fitting[options]])
            if placed is None:
                return False
            self.choice[table], self.groups[table] = placed
            add_blocks(self.loads, self.problem.blocks(placed[0]), placed[1])
        return True

    def take_out(self, tables: Ints) -> list[tuple[int, Ints]]:
        """Takes tables out; returns how they were."""
        before = [(int(self.choice[table]), self.groups[table]) for table in tables.tolist()]
        for table, (option, groups) in zip(tables.tolist(), before, strict=True):
            add_blocks(self.loads, self.problem.blocks(option), groups, -1.0)
            self.choice[table] = -1
        return before

    def restore(self, tables: Ints, before: list[tuple[int, Ints]]) -> None:
        """Puts tables back as they were."""
        for table, (option, groups) in zip(tables.tolist(), before, strict=True):
            if self.choice[table] >= 0:
                now = self.problem.blocks(int(self.choice[table]))
                add_blocks(self.loads, now, self.groups[table], -1.0)
            self.choice[table], self.groups[table] = option, groups
            add_blocks(self.loads, self.problem.blocks(option), groups)

    def draw_tables(self, draw: np.random.Generator) -> Ints:
        """A few tables: most of them of a worker that is slowest in a phase, the others any."""
        problem, phases = self.problem, self.loads[:, :NUM_PHASES]
        excess = problem.weights * np.maximum(phases.max(axis=0) - phases.mean(axis=0), 0.0)
        busiest = 0
        if excess.sum() > 0:
            busiest = int(phases[:, int(draw.choice(NUM_PHASES, p=excess / excess.sum()))].argmax())
        widths = problem.width[self.choice]
        there = [
            table
            for table, width in enumerate(widths.tolist())
            if width == problem.world_size or busiest // width in self.groups[table]
        ]
        count = int(draw.integers(*(_MANY_OUT if draw.random() < _OFTEN else _TAKEN_OUT)))
        mine = draw.permutation(np.array(there, dtype=np.int64))[: (count + 1) // 2]
        others = draw.integers(0, problem.num_tables, count - len(mine))
        return np.unique(np.concatenate((mine, others)))

    def seconds(self) -> float:
        """How long a step takes."""
        return step_seconds(self.problem, self.loads, PlacementSolution(self.choice, self.groups))

    def solution(self) -> PlacementSolution:
        """The plan as it is."""
        return PlacementSolution(self.choice, self.groups).copy()

    def _best(self, options: Ints) -> tuple[int, Ints] | None:
        """The cheapest of some options of a table, and where its blocks go."""
        best: tuple[float, int, Ints] | None = None
        widths = self.problem.width[options]
        for width in np.unique(widths).tolist():
            for found in self._placed(options[widths == width], width):
                if best is None or found[0] < best[0]:
                    best = found
        return None if best is None else best[1:]

    def _placed(self, options: Ints, width: int) -> list[tuple[float, int, Ints]]:
        """For options of one width: what they cost where they cost least, and where, if they have room."""
        problem = self.problem
        groups = problem.num_groups(int(options[0]))
        view = self.loads[: groups * width].reshape(1, groups, width, -1)
        # The first variant is the larger one; a group with room for it has room for both.
        shards = problem.shards[problem.starts[options, 0][:, None] + np.arange(width)][:, None]
        after = view + shards
        full = (after[..., NUM_PHASES:] > problem.capacity).any(axis=(2, 3))
        added = _eighth(after / self.target) - _eighth(view / self.target)
        cost = np.where(full, np.inf, (added @ self.value).sum(axis=2))
        order = np.argsort(cost, axis=1, kind="stable")
        placed = []
        for number, option in enumerate(options.tolist()):
            count = int(problem.counts[option].sum())
            if count > groups:
                continue
            taken = order[number, :count]
            total = float(cost[number, taken].sum()) + float(self.price[option])
            if np.isfinite(total):
                placed.append((total, option, taken))
        return placed


def _eighth(values: Floats) -> Floats:
    powered = values * values
    powered *= powered
    powered *= powered
    return powered
