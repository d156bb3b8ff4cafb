"""Local search: relieve the worst workers, by moving a block, swapping two, or cutting a table another way.

The step is a sum of maxima, which most changes leave as it is; so changes are judged by a smooth stand-in.
Each phase has a level, a part of the way from its mean load to its largest; loads below it are free, loads
above it count

    weight x (largest - level) x ((load - level) / (largest - level)) ** q

so that a phase counts by what evening it out would save, and a worker that stays below the level may take
what others must give away. All moves of a worker's blocks to all others, all swaps with all blocks elsewhere,
and all options of a table are each one pass over arrays. Random swaps that settle into something better
follow when nothing else helps. The best plan by the true step is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from megalith.sharding.planner.clock import Deadline
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Floats,
    Ints,
    Problem,
    Solution,
    add_blocks,
    loads_of,
    step_seconds,
)

POWERS = (4, 8)
_RECUT_WORKERS = 3
_RECUT_TABLES = 4
_RESCALE = 32
"""Changes after which the largest loads are looked up again."""
_KICKED = 4
_SETTLING = 24
_VAIN = 400
_CANDIDATES = 16
_LEVEL = 0.3
"""Where loads begin to count, between the mean and the largest."""
_TINY = 1e-9
_FAR = 1e4
"""Loads so far beyond the largest are all alike, and their powers still numbers."""


def improve(
    problem: Problem, solution: Solution, deadline: Deadline, target_seconds: float = 0.0
) -> Solution:
    """A plan that is no slower; stops at `deadline` or at `target_seconds`."""
    search = _Search(problem, solution)
    for power in POWERS:
        search.descend(power, deadline, target_seconds)
    search.kick(deadline, target_seconds)
    return search.best


class _Search:
    """Loads and places of the current plan, and the best one seen."""

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.problem = problem
        self.current = solution.copy()
        self.loads = loads_of(problem, solution)
        self.best = solution.copy()
        self.best_seconds = step_seconds(problem, self.loads, solution)
        self.power = POWERS[0]
        self.log: list[tuple[int, int]] = []
        """Blocks that were moved, and from where."""
        self._list_blocks()
        self._scale()

    def _list_blocks(self) -> None:
        """Blocks of one worker as arrays; the others stay with their tables."""
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

    def descend(self, power: int, deadline: Deadline, target_seconds: float) -> None:
        """Until no worker has a change left that helps."""
        self.power = power
        while not deadline.passed and self.best_seconds > target_seconds:
            if self._pass(deadline):
                continue
            if not self._recut():
                return

    def kick(self, deadline: Deadline, target_seconds: float) -> None:
        """Disturbs one of the worst workers, lets it and whom it meets settle, and keeps what is better;
        stops when many kicks in a row were in vain."""
        draw = np.random.default_rng(0)
        self._scale()
        vain = 0
        while not deadline.passed and self.best_seconds > target_seconds and vain < _VAIN:
            # One of the slowest workers of a phase, phases by what evening them out would bring.
            above = (self.loads.max(axis=0) - self.loads.mean(axis=0))[:NUM_PHASES]
            # The mean of equal loads may be rounded to above them.
            excess = self.problem.weights * np.maximum(above, 0.0)
            if excess.sum() <= 0:
                return
            phase = int(draw.choice(NUM_PHASES, p=excess / excess.sum()))
            worker = int(draw.choice(np.argsort(-self.loads[:, phase])[:_KICKED]))
            better = self._kick_swap(worker, draw, deadline)
            vain = 0 if better else vain + 1
            if better:
                self._remember()
                self._scale()

    def _kick_swap(self, worker: int, draw: np.random.Generator, deadline: Deadline) -> bool:
        """Swaps two blocks at random."""
        others = np.flatnonzero(self.block_worker != worker)
        mine = np.flatnonzero(self.block_worker == worker)
        if not len(mine) or not len(others):
            return False
        out, back = int(draw.choice(mine)), int(draw.choice(others))
        other = int(self.block_worker[back])
        if not self._may_swap(out, back):
            return False
        before = float(self.worth.sum())
        self.log = []
        self._move(back, worker)
        self._move(out, other)
        self._settle([worker, other], deadline)
        if float(self.worth.sum()) < before * (1 - 1e-7):
            return True
        for block, source in reversed(self.log):
            self._move(block, source)
        return False

    def _may_swap(self, one: int, other: int) -> bool:
        here, there = int(self.block_worker[one]), int(self.block_worker[other])
        if self.holds[self.block_table[one], there] or self.holds[self.block_table[other], here]:
            return False
        return self._fits_swap(one, other)

    def _settle(self, disturbed: list[int], deadline: Deadline) -> None:
        """Relieves the disturbed workers, and those that a change reaches once."""
        waiting = np.zeros(self.problem.world_size, dtype=bool)
        waiting[disturbed] = True
        reached = waiting.copy()
        for _ in range(_SETTLING):
            if not waiting.any() or deadline.passed:
                return
            worker = int(np.argmax(np.where(waiting, self.worth, -1.0)))
            moved = len(self.log)
            if not self._relieve(worker):
                waiting[worker] = False
                continue
            for block, _ in self.log[moved:]:
                place = int(self.block_worker[block])
                if not reached[place]:
                    reached[place] = waiting[place] = True

    def _pass(self, deadline: Deadline) -> bool:
        """Relieves workers, the worst first, each until it is stuck; says whether anything changed."""
        self._scale()
        self.log = []
        waiting = self.worth > 0
        changes = 0
        while waiting.any() and not deadline.passed:
            worker = int(np.argmax(np.where(waiting, self.worth, -1.0)))
            if not self._relieve(worker):
                waiting[worker] = False
                continue
            changes += 1
            if changes % _RESCALE == 0:
                self._remember()
                self._scale()
        self._remember()
        return changes > 0

    def _remember(self) -> None:
        seconds = step_seconds(self.problem, self.loads, self.current)
        if seconds < self.best_seconds * (1 - 1e-12):
            self.best_seconds = seconds
            self.best = self.current.copy()

    def _scale(self) -> None:
        """Loads and blocks as shares of the largest loads, and the levels."""
        top = self.loads[:, :NUM_PHASES].max(axis=0)
        # A phase without any load yet is measured by the others.
        top = np.maximum(top, 1e-3 * top.sum() + 1e-30)
        mean = self.loads[:, :NUM_PHASES].mean(axis=0)
        self.top = top
        self.level = (mean + _LEVEL * (top - mean)) / top
        self.value = self.problem.weights * top * (1 - self.level)
        self.steep = 1 / np.maximum(1 - self.level, 1e-12)
        self._rescaled()

    def _rescaled(self) -> None:
        """The same after loads or blocks have changed."""
        top = self.top
        self.scaled: Floats = self.loads[:, :NUM_PHASES] / top
        self.block_scaled: Floats = self.block_loads[:, :NUM_PHASES] / top
        self.worth: Floats = self._powered(self.scaled.copy())

    def _powered(self, scaled: Floats) -> Floats:
        """The stand-in's share of workers with these loads [..., phases]; overwrites them."""
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

    def _relieve(self, worker: int) -> bool:
        """The best move of one of the worker's blocks, or else swap with a block elsewhere, if one helps."""
        mine = np.flatnonzero(self.block_worker == worker)
        if not len(mine):
            return False
        worth, scaled = self.worth, self.scaled
        blocks = self.block_scaled[mine]
        threshold = -_TINY * float(worth[worker]) - 1e-30
        left = self._powered(scaled[worker] - blocks) - worth[worker]
        gain = left[:, None] + self._powered(scaled[None] + blocks[:, None]) - worth
        gain[self.holds[self.block_table[mine]]] = np.inf
        found = self._cheapest(
            gain, threshold, lambda block, target: self._fits_move(int(mine[block]), target)
        )
        if found is not None:
            self._move(int(mine[found[0]]), found[1])
            return True

        others = np.flatnonzero((self.block_worker != worker) & (worth[self.block_worker] < worth[worker]))
        if not len(others):
            return False
        away = self.block_worker[others]
        difference = self.block_scaled[others][None] - blocks[:, None]
        gain = self._powered(scaled[worker] + difference) - worth[worker]
        gain += self._powered(scaled[away][None] - difference) - worth[away]
        gain[self.holds[self.block_table[mine]][:, away]] = np.inf
        gain[:, self.holds[self.block_table[others], worker]] = np.inf
        found = self._cheapest(
            gain, threshold, lambda block, other: self._fits_swap(int(mine[block]), int(others[other]))
        )
        if found is None:
            return False
        block, other = found
        self._move(int(others[other]), worker)
        self._move(int(mine[block]), int(away[other]))
        return True

    def _cheapest(
        self, gain: Floats, threshold: float, fits: Callable[[int, int], bool]
    ) -> tuple[int, int] | None:
        """The best entry that helps and fits; memory is looked at one candidate at a time, as it rarely
        stands in the way."""
        for _ in range(_CANDIDATES):
            row, column = divmod(int(np.argmin(gain)), gain.shape[1])
            if not float(gain[row, column]) < threshold:
                return None
            if fits(row, column):
                return row, column
            gain[row, column] = np.inf
        return None

    def _fits_move(self, block: int, target: int) -> bool:
        held = self.loads[target, NUM_PHASES:] + self.block_loads[block, NUM_PHASES:]
        return bool((held <= self.problem.capacity).all())

    def _fits_swap(self, one: int, other: int) -> bool:
        here, there = int(self.block_worker[one]), int(self.block_worker[other])
        change = self.block_loads[other, NUM_PHASES:] - self.block_loads[one, NUM_PHASES:]
        held, capacity = self.loads[:, NUM_PHASES:], self.problem.capacity
        return bool((held[here] + change <= capacity).all() and (held[there] - change <= capacity).all())

    def _move(self, block: int, target: int) -> None:
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
        self.worth[both] = self._powered(self.scaled[both].copy())

    def _recut(self) -> bool:
        """Of the worst workers' tables, largest first, those that are better cut or placed another way."""
        problem, current = self.problem, self.current
        self._scale()
        changed = False
        for worker in np.argsort(-self.worth)[:_RECUT_WORKERS].tolist():
            widths = problem.width[current.choice].tolist()
            here = [
                table
                for table, width in enumerate(widths)
                if width == problem.world_size or worker // width in current.groups[table]
            ]
            tables = np.array(here, dtype=np.int64)
            size = (problem.peak[current.choice[tables], :NUM_PHASES] / self.top) @ self.value
            for table in tables[np.argsort(-size)][:_RECUT_TABLES].tolist():
                changed |= self._recut_table(table)
        self._remember()
        return changed

    def _recut_table(self, table: int) -> bool:
        """The best option and place for one table, the others staying where they are."""
        problem = self.problem
        before = float(self.worth.sum())
        old = int(self.current.choice[table])
        add_blocks(self.loads, problem.blocks(old), self.current.groups[table], -1.0)
        worth = self._powered(self.loads[:, :NUM_PHASES] / self.top)
        options = np.array(problem.options(table), dtype=np.int64)
        best: tuple[float, int, Ints] | None = None
        for width in np.unique(problem.width[options]):
            chosen = options[problem.width[options] == width]
            for found in self._placed(chosen, int(width), worth):
                if best is None or found[0] < best[0]:
                    best = found
        better = best is not None and best[0] + float(worth.sum()) < before * (1 - 1e-6)
        if best is None or not better:
            add_blocks(self.loads, problem.blocks(old), self.current.groups[table])
            return False
        _, option, groups = best
        self._take(table, option, groups)
        self._scale()
        return True

    def _take(self, table: int, option: int, groups: Ints) -> None:
        """Lays a table down another way; its old blocks are off the loads already."""
        add_blocks(self.loads, self.problem.blocks(option), groups)
        self.current.choice[table] = option
        self.current.groups[table] = groups
        self._list_blocks()
        self._rescaled()

    def _placed(self, options: Ints, width: int, worth: Floats) -> list[tuple[float, int, Ints]]:
        """For options of one width: what the best places add, and which these are, where they fit."""
        problem = self.problem
        groups = problem.groups(int(options[0]))
        view = self.loads[: groups * width].reshape(groups, width, -1)
        base = worth[: groups * width].reshape(groups, width).sum(axis=1)
        added = []
        for variant in range(2):
            places = problem.starts[options, variant][:, None] + np.arange(width)
            shards = problem.shards[places][:, None]
            loads = (view[None, :, :, :NUM_PHASES] + shards[..., :NUM_PHASES]) / self.top
            gain = self._powered(loads).sum(axis=2) - base
            memory = view[None, :, :, NUM_PHASES:] + shards[..., NUM_PHASES:]
            gain[~_room(memory, problem.capacity).all(axis=2)] = np.inf
            added.append(gain)
        order = np.argsort(added[0], axis=1, kind="stable")
        found = []
        for number, option in enumerate(options.tolist()):
            wide, narrow = problem.counts[option].tolist()
            if wide + narrow > groups:
                continue
            # Slices differ by a column at most: the wider ones go where they add least.
            taken = order[number, : wide + narrow]
            total = float(added[0][number, taken[:wide]].sum() + added[1][number, taken[wide:]].sum())
            if np.isfinite(total):
                found.append((total, option, taken))
        return found


def _room(held: Floats, capacity: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.all(held <= capacity, axis=-1))
