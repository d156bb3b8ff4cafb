"""Local search: relieve the worst workers, by moving a block, swapping two, or giving a table another option.

All moves of a worker's blocks to all others, all swaps with all blocks elsewhere, and all options of a table
are each one pass over arrays (`search_state.py`). Random swaps that settle into something better follow when
nothing else helps. The best plan by the true step is kept.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from megalith.sharding.planner.loads import add_blocks
from megalith.sharding.planner.partition.search_state import POWERS, SearchState
from megalith.sharding.planner.search import Deadline
from megalith.sharding.planner.types import NUM_PHASES, Floats, Ints, PlacementProblem, PlacementSolution

_RECUT_WORKERS = 3
_RECUT_TABLES = 4
_RECUT_SHARE = 64
_RESCALE = 32
"""Changes after which the largest loads are looked up again."""
_KICKED = 4
_SETTLING = 24
_VAIN = 400
_MANY_WORKERS = 256
_MATTERS = 0.05
"""Of the worst worker's cost, what one of many must have to be relieved."""
_CANDIDATES = 16
_TINY = 1e-9


def local_search(
    problem: PlacementProblem, solution: PlacementSolution, deadline: Deadline, target_seconds: float = 0.0
) -> PlacementSolution:
    """A plan that is no slower; stops at `deadline` or at `target_seconds`."""
    search = _LocalSearch(problem, solution)
    for power in POWERS:
        search.descend(power, deadline, target_seconds)
    search.kick(deadline, target_seconds)
    return search.best


class _LocalSearch(SearchState):
    """Changes of the current plan that make it quicker."""

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
        self.set_levels()
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
                self.remember()
                self.set_levels()

    def _kick_swap(self, worker: int, draw: np.random.Generator, deadline: Deadline) -> bool:
        """Swaps two blocks at random."""
        others = np.flatnonzero(self.block_worker != worker)
        mine = np.flatnonzero(self.block_worker == worker)
        if not len(mine) or not len(others):
            return False
        out, back = int(draw.choice(mine)), int(draw.choice(others))
        other = int(self.block_worker[back])
        if not self.may_swap(out, back):
            return False
        before = float(self.cost.sum())
        self.log = []
        self.move(back, worker)
        self.move(out, other)
        self._settle([worker, other], deadline)
        if float(self.cost.sum()) < before * (1 - 1e-7):
            return True
        for block, source in reversed(self.log):
            self.move(block, source)
        return False

    def _settle(self, disturbed: list[int], deadline: Deadline) -> None:
        """Relieves the disturbed workers, and those that a change reaches once."""
        waiting = np.zeros(self.problem.world_size, dtype=bool)
        waiting[disturbed] = True
        reached = waiting.copy()
        for _ in range(_SETTLING):
            if not waiting.any() or deadline.passed:
                return
            worker = int(np.argmax(np.where(waiting, self.cost, -1.0)))
            moved = len(self.log)
            if not self._relieve(worker):
                waiting[worker] = False
                continue
            for block, _ in self.log[moved:]:
                holder = int(self.block_worker[block])
                if not reached[holder]:
                    reached[holder] = waiting[holder] = True

    def _pass(self, deadline: Deadline) -> bool:
        """Relieves workers, the worst first, each until it is stuck; says whether anything changed."""
        self.set_levels()
        self.log = []
        # On many workers those that cost next to nothing are left alone: they are most of the time in vain.
        few = len(self.cost) <= _MANY_WORKERS
        waiting = self.cost > (0.0 if few else _MATTERS * float(self.cost.max()))
        changes = 0
        while waiting.any() and not deadline.passed:
            worker = int(np.argmax(np.where(waiting, self.cost, -1.0)))
            if not self._relieve(worker):
                waiting[worker] = False
                continue
            changes += 1
            if changes % _RESCALE == 0:
                self.remember()
                self.set_levels()
        self.remember()
        return changes > 0

    def _relieve(self, worker: int) -> bool:
        """The best move of one of the worker's blocks, or else swap with a block elsewhere, if one helps."""
        mine = np.flatnonzero(self.block_worker == worker)
        if not len(mine):
            return False
        cost, scaled = self.cost, self.scaled
        blocks = self.block_scaled[mine]
        threshold = -_TINY * float(cost[worker]) - 1e-30
        left = self.excess_cost(scaled[worker] - blocks) - cost[worker]
        gain = left[:, None] + self.excess_cost(scaled[None] + blocks[:, None]) - cost
        gain[self.holds[self.block_table[mine]]] = np.inf
        best = self._cheapest(gain, threshold, lambda block, target: self.fits_move(int(mine[block]), target))
        if best is not None:
            self.move(int(mine[best[0]]), best[1])
            return True

        others = np.flatnonzero((self.block_worker != worker) & (cost[self.block_worker] < cost[worker]))
        if not len(others):
            return False
        away = self.block_worker[others]
        difference = self.block_scaled[others][None] - blocks[:, None]
        gain = self.excess_cost(scaled[worker] + difference) - cost[worker]
        gain += self.excess_cost(scaled[away][None] - difference) - cost[away]
        gain[self.holds[self.block_table[mine]][:, away]] = np.inf
        gain[:, self.holds[self.block_table[others], worker]] = np.inf
        best = self._cheapest(
            gain, threshold, lambda block, other: self.fits_swap(int(mine[block]), int(others[other]))
        )
        if best is None:
            return False
        block, other = best
        self.move(int(others[other]), worker)
        self.move(int(mine[block]), int(away[other]))
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

    def _recut(self) -> bool:
        """Of the worst workers' tables, largest first, those that are better sharded otherwise."""
        problem, current = self.problem, self.current
        self.set_levels()
        changed = False
        most = max(_RECUT_WORKERS, problem.world_size // _RECUT_SHARE)
        for worker in np.argsort(-self.cost)[:most].tolist():
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
        self.remember()
        return changed

    def _recut_table(self, table: int) -> bool:
        """The best option and groups for one table, the others staying where they are."""
        problem = self.problem
        before = float(self.cost.sum())
        old = int(self.current.choice[table])
        add_blocks(self.loads, problem.blocks(old), self.current.groups[table], -1.0)
        cost = self.excess_cost(self.loads[:, :NUM_PHASES] / self.top)
        options = np.array(problem.options_of(table), dtype=np.int64)
        best: tuple[float, int, Ints] | None = None
        for width in np.unique(problem.width[options]):
            chosen = options[problem.width[options] == width]
            for placed in self.best_groups(chosen, int(width), cost):
                if best is None or placed[0] < best[0]:
                    best = placed
        better = best is not None and best[0] + float(cost.sum()) < before * (1 - 1e-6)
        if best is None or not better:
            add_blocks(self.loads, problem.blocks(old), self.current.groups[table])
            return False
        _, option, groups = best
        self.take_option(table, option, groups)
        self.set_levels()
        return True
