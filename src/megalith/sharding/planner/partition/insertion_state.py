"""The current plan of a search that takes tables out and puts them in again, over the native operator.

`ops/sharding/reinsertion.py` says what a round is. Here are the options that tables may take, what these
cost, and the limits of the phases: loads below them are free.
"""

from __future__ import annotations

import numpy as np

from megalith.ops.sharding.reinsertion import (
    InsertionPlan,
    InsertionProblem,
    InsertionSearch,
    reinsert_tables,
)
from megalith.sharding.planner.loads import loads_of, step_seconds
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Flags,
    Floats,
    Ints,
    PlacementProblem,
    PlacementSolution,
)

_SMALL = 0.1
"""Of a worker's memory, what a small block takes at most."""
_FULL = 2.0
"""How hard it is to place a block that fills a worker's memory, against one that fills a phase."""
_FILLED = 0.05
"""What a worker whose memory is full costs to begin with, as a share of its part of the step."""
_EXACTLY = 8
"""Searches after which loads are added up anew."""
_NONE = np.empty(0, dtype=np.int64)


class InsertionState:
    """Tables that are in the plan, where, and what workers have of them."""

    def __init__(
        self,
        problem: PlacementProblem,
        price: Floats,
        usable: Flags,
        promising: tuple[int, int] = (40, 24),
        start: PlacementSolution | None = None,
        small: Flags | None = None,
    ) -> None:
        """`promising` is how many options of a table are looked at: by their price, and by their price among
        those with small blocks: `small`, or those of a small part of a worker's memory."""
        self.problem = problem
        share = (problem.peak[:, NUM_PHASES:] / np.maximum(problem.capacity, 1)).max(axis=1)
        fitting = np.asarray(share <= 1.0) & usable & np.isfinite(price)
        self.price: Floats = np.where(fitting, price, 0.0)
        small = np.asarray(share <= _SMALL) if small is None else small
        kept = []
        for table, (begin, end) in enumerate(problem.option_ranges()):
            options = begin + np.flatnonzero(fitting[begin:end])
            ranked = options[np.argsort(price[options], kind="stable")]
            fine = ranked[small[ranked]][: promising[1]]
            chosen = [] if start is None else [int(start.choice[table])]
            mine = np.unique(np.concatenate((ranked[: promising[0]], fine, chosen)).astype(np.int64))
            kept.append(mine[np.argsort(self.price[mine], kind="stable")])
        self._candidates: Ints = np.concatenate(kept)
        self._first: Ints = np.concatenate(([0], np.cumsum([len(mine) for mine in kept])))
        self._blocks: Ints = problem.counts.sum(axis=1)
        most = [int(self._blocks[mine].max(initial=0)) for mine in kept]
        self.plan = InsertionPlan(
            np.full(problem.num_tables, -1, dtype=np.int64),
            np.concatenate(([0], np.cumsum(most))),
            np.zeros(sum(most), dtype=np.int64),
            np.zeros((problem.world_size, problem.shards.shape[1])),
        )
        self._seed = 0
        self._size: Floats | None = None
        """How hard an option is to place, at the first limits."""
        if start is not None:
            self.begin(start)

    def begin(self, solution: PlacementSolution) -> None:
        """Continues from a plan whose options are among those that are looked at."""
        self.plan.choice[:] = solution.choice
        for begin, groups in zip(self.plan.group_first.tolist(), solution.groups, strict=False):
            self.plan.groups[begin : begin + len(groups)] = groups
        self.plan.loads[:] = loads_of(self.problem, solution)

    def fill(self, limits: Floats, crowded: float) -> bool:
        """Puts all tables in, the largest first, where they crowd workers least; says whether there was room.

        A worker at its limits costs `crowded` times its part of the step.
        """
        problem = self.problem
        bytes_of = problem.total[problem.first[:-1], NUM_PHASES:].sum(axis=1)
        seconds = problem.total[problem.first[:-1], :NUM_PHASES].sum(axis=1)
        order = np.lexsort((-seconds, -bytes_of))
        step = float(problem.weights @ limits)
        # Memory that is filled evenly leaves room everywhere.
        value = np.append(crowded * problem.weights * limits, np.full(len(problem.capacity), _FILLED * step))
        described = self._described(limits, value / problem.world_size, self.price, level=0.0, doublings=3)
        return reinsert_tables(described, self.plan, order, InsertionSearch())[0] == len(order)

    def improve(
        self,
        limits: Floats,
        rounds: int,
        *,
        dearness: float,
        window: int = 0,
        slack: float = 0.0,
        others: tuple[int, int] = (3, 2),
        exchanges: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Rounds that bring workers below the limits; options cost `dearness` times their price besides.

        `window`, `slack`, `others` (workers and tables of each) and `exchanges` (how many and their slack)
        are those of `InsertionSearch`.
        """
        described = self._described(limits, self.problem.weights * limits, dearness * self.price)
        self._seed += 1
        search = InsertionSearch(rounds, self._seed, *others, window, slack, *exchanges)
        reinsert_tables(described, self.plan, _NONE, search)
        if self._seed % _EXACTLY == 0:
            # Sums that are added to and taken from for long are no longer exact.
            self.plan.loads[:] = loads_of(self.problem, self.solution())

    def _described(
        self, limits: Floats, value: Floats, price: Floats, level: float = 1.0, doublings: int = 1
    ) -> InsertionProblem:
        problem = self.problem
        limits = np.maximum(limits, 1e-3 * limits.sum() + 1e-30)
        if self._size is None:
            most = np.append(limits, np.maximum(problem.capacity, 1) / _FULL)
            self._size = ((problem.peak / most) ** 2).sum(axis=1) * problem.width
        return InsertionProblem(
            first=self._first,
            candidates=self._candidates,
            width=problem.width,
            counts=problem.counts,
            starts=problem.starts,
            shards=problem.shards,
            price=price,
            size=self._size,
            scale=(1 / np.append(limits, np.maximum(problem.capacity, 1.0)))[: len(value)],
            value=value,
            capacity=problem.capacity,
            level=level,
            doublings=doublings,
        )

    @property
    def phases(self) -> Floats:
        """[workers, phases]: seconds."""
        return self.plan.loads[:, :NUM_PHASES]

    def seconds(self) -> float:
        """How long a step takes."""
        return step_seconds(self.problem, self.plan.loads, self.solution())

    def solution(self) -> PlacementSolution:
        """The plan as it is."""
        counts = self._blocks[self.plan.choice].tolist()
        groups = [
            self.plan.groups[begin : begin + count].copy()
            for begin, count in zip(self.plan.group_first.tolist(), counts, strict=False)
        ]
        return PlacementSolution(self.plan.choice.copy(), groups)
