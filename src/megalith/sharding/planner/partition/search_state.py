"""The current plan of a local search as arrays, and what a change of it would be worth.

The step is a sum of maxima, which most changes leave as it is; so changes are judged by a smooth substitute.
Each phase has a level, a part of the way from its mean load to its largest; loads below it are free, loads
above it cost

    weight x (largest - level) x ((load - level) / (largest - level)) ** q

so that a phase counts by what evening it out would save, and a worker that stays below the level may take
what others must give away.
"""

from __future__ import annotations

import numpy as np

from megalith.sharding.planner.loads import add_blocks, loads_of, step_seconds
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    PlacementProblem,
    PlacementSolution,
)

POWERS = (4, 8)
_LEVEL = 0.3
"""Where loads begin to count, between the mean and the largest."""
_FAR = 1e4
"""Loads so far beyond the largest are all alike, and their powers still numbers."""


class SearchState:
    """Loads and groups of the current plan, and the best one seen."""

    def __init__(self, problem: PlacementProblem, solution: PlacementSolution) -> None:
        self.problem = problem
        self.current = solution.copy()
        self.loads = loads_of(problem, solution)
        self.best = solution.copy()
        self.best_seconds = step_seconds(problem, self.loads, solution)
        self.power = POWERS[0]
        self.log: list[tuple[int, int]] = []
        """Blocks that were moved, and from where."""
        self.list_blocks()
        self.set_levels()

    def list_blocks(self) -> None:
        """Blocks that span one worker as arrays; the others stay with their tables."""
        problem, current = self.problem, self.current
        single = [table for table, option in enumerate(current.choice) if problem.width[option] == 1]
        pieces = [problem.blocks(int(current.choice[table]))[:, 0] for table in single]
        empty = np.empty(0, dtype=np.int64)
        self.block_loads: Floats = np.concatenate([np.empty((0, problem.shards.shape[1])), *pieces])
        self.block_worker: Ints = np.concatenate([empty, *(current.groups[table] for table in single)])
        lengths = [len(piece) for piece in pieces]
        self.block_table: Ints = np.repeat(np.array(single, dtype=np.int64), lengths)
        self.block_number: Ints = np.concatenate([empty, *(np.arange(length) for length in lengths)])
        self.holds = np.zeros((problem.num_tables, problem.world_size), dtype=bool)
        self.holds[self.block_table, self.block_worker] = True

    def remember(self) -> None:
        """Keeps the current plan if it is the quickest so far."""
        seconds = step_seconds(self.problem, self.loads, self.current)
        if seconds < self.best_seconds * (1 - 1e-12):
            self.best_seconds = seconds
            self.best = self.current.copy()

    def set_levels(self) -> None:
        """Loads and blocks as shares of the largest loads, and the levels."""
        top = self.loads[:, :NUM_PHASES].max(axis=0)
        # A phase without any load yet is measured by the others.
        top = np.maximum(top, 1e-3 * top.sum() + 1e-30)
        mean = self.loads[:, :NUM_PHASES].mean(axis=0)
        self.top = top
        self.level = (mean + _LEVEL * (top - mean)) / top
        self.value = self.problem.weights * top * (1 - self.level)
        self.steep = 1 / np.maximum(1 - self.level, 1e-12)
        self.rescale_loads()

    def rescale_loads(self) -> None:
        """Loads and blocks as shares of the largest again, after they have changed."""
        top = self.top
        self.scaled: Floats = self.loads[:, :NUM_PHASES] / top
        self.block_scaled: Floats = self.block_loads[:, :NUM_PHASES] / top
        self.cost: Floats = self.excess_cost(self.scaled.copy())

    def excess_cost(self, scaled: Floats) -> Floats:
        """What workers with these loads [..., phases] cost by the smooth substitute; overwrites them."""
        scaled -= self.level
        scaled *= self.steep
        np.maximum(scaled, 0.0, out=scaled)
        np.minimum(scaled, _FAR, out=scaled)
        power = self.power
        while power > 1:
            scaled *= scaled
            power //= 2
        result: Floats = scaled @ self.value
        return result

    def may_swap(self, block: int, other: int) -> bool:
        """Whether two blocks may change workers: no worker gets two shards of a table or too many bytes."""
        here, there = int(self.block_worker[block]), int(self.block_worker[other])
        if self.holds[self.block_table[block], there] or self.holds[self.block_table[other], here]:
            return False
        return self.fits_swap(block, other)

    def fits_move(self, block: int, target: int) -> bool:
        """Whether a worker has room for a block."""
        held = self.loads[target, NUM_PHASES:] + self.block_loads[block, NUM_PHASES:]
        return bool((held <= self.problem.capacity).all())

    def fits_swap(self, block: int, other: int) -> bool:
        """Whether both workers have room after two blocks were swapped."""
        here, there = int(self.block_worker[block]), int(self.block_worker[other])
        change = self.block_loads[other, NUM_PHASES:] - self.block_loads[block, NUM_PHASES:]
        held, capacity = self.loads[:, NUM_PHASES:], self.problem.capacity
        return bool((held[here] + change <= capacity).all() and (held[there] - change <= capacity).all())

    def move(self, block: int, target: int) -> None:
        """Moves a block to another worker and notes where it came from."""
        source, table = int(self.block_worker[block]), int(self.block_table[block])
        self.loads[source] -= self.block_loads[block]
        self.loads[target] += self.block_loads[block]
        self.block_worker[block] = target
        self.log.append((block, source))
        self.holds[table, source] = False
        self.holds[table, target] = True
        self.current.groups[table][self.block_number[block]] = target
        both = np.array([source, target])
        self.scaled[both] = self.loads[both, :NUM_PHASES] / self.top
        self.cost[both] = self.excess_cost(self.scaled[both].copy())

    def take_option(self, table: int, option: int, groups: Ints) -> None:
        """Gives a table another option; its old blocks are off the loads already."""
        add_blocks(self.loads, self.problem.blocks(option), groups)
        self.current.choice[table] = option
        self.current.groups[table] = groups
        self.list_blocks()
        self.rescale_loads()

    def best_groups(self, options: Ints, width: int, cost: Floats) -> list[tuple[float, int, Ints]]:
        """For options of one width: what the best groups add, and which these are, where they fit."""
        problem = self.problem
        groups = problem.num_groups(int(options[0]))
        view = self.loads[: groups * width].reshape(groups, width, -1)
        base = cost[: groups * width].reshape(groups, width).sum(axis=1)
        added = []
        for variant in range(2):
            positions = problem.starts[options, variant][:, None] + np.arange(width)
            shards = problem.shards[positions][:, None]
            loads = (view[None, :, :, :NUM_PHASES] + shards[..., :NUM_PHASES]) / self.top
            gain = self.excess_cost(loads).sum(axis=2) - base
            memory = view[None, :, :, NUM_PHASES:] + shards[..., NUM_PHASES:]
            gain[~_room(memory, problem.capacity).all(axis=2)] = np.inf
            added.append(gain)
        order = np.argsort(added[0], axis=1, kind="stable")
        placed = []
        for number, option in enumerate(options.tolist()):
            wide, narrow = problem.counts[option].tolist()
            if wide + narrow > groups:
                continue
            # Slices differ by a column at most: the wider ones go where they add least.
            taken = order[number, : wide + narrow]
            total = float(added[0][number, taken[:wide]].sum() + added[1][number, taken[wide:]].sum())
            if np.isfinite(total):
                placed.append((total, option, taken))
        return placed


def _room(held: Floats, capacity: Floats) -> Flags:
    return np.asarray(np.all(held <= capacity, axis=-1))
