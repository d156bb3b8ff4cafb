"""Tables taken out of a sharding plan and put in again, a few at a time: native, and the plain twin.

Arrays describe the plan as the planner has it (`sharding/planner/types.py`); torch takes no part. Both sides
add in the same order and draw the same numbers, so that they take the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
WORST, SORTED = 0.3, 0.7
"""How often the dearest worker is relieved, and how often the largest tables are put in first."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class InsertionProblem:
    """What tables may take, and what that costs. Loads are seconds of phases, then bytes of tiers."""

    first: Ints
    """Candidates of table t: [first[t], first[t + 1])."""
    candidates: Ints
    """Options, of each table by rising price."""
    width: Ints
    """Of each option: workers that a block spans."""
    counts: Ints
    """[options, 2]: blocks of both variants, the larger first."""
    starts: Ints
    """[options, 2]: where the loads of a variant begin in `shards`."""
    shards: Floats
    price: Floats
    """Of each option, finite and at least 0."""
    size: Floats
    """Of each option: how hard it is to place; the largest come first."""
    scale: Floats
    """One over the limit of each phase, and of each tier if memory is to be filled evenly."""
    value: Floats
    """Of the same: what a worker costs that is beyond its limit."""
    capacity: Floats
    """Bytes of each tier."""
    level: float = 1.0
    """Share of its limit from which a phase costs something."""
    doublings: int = 1
    """The power of what is beyond: 2 to this."""


@dataclass(frozen=True)
class InsertionPlan:
    """A plan that is changed in place."""

    choice: Ints
    """The option of each table; -1 for one that is not in the plan."""
    group_first: Ints
    """Groups of table t begin at group_first[t], with room for those of any candidate."""
    groups: Ints
    loads: Floats
    """[workers, phases + tiers]"""


@dataclass(frozen=True)
class InsertionSearch:
    """How to look for a better plan."""

    rounds: int = 0
    seed: int = 0
    most_workers: int = 3
    """Workers besides the one that is relieved whose tables are taken out, 1 to this."""
    most_tables: int = 2
    """Tables of each, 1 to this."""
    window: int = 0
    """Workers that a table is tried on, drawn anew for each option; 0 for all."""
    slack: float = 0.0
    """A round stays that costs more by up to this, drawn evenly."""


def reinsert_tables(
    problem: InsertionProblem, plan: InsertionPlan, inserted: Ints, search: InsertionSearch
) -> tuple[int, int]:
    """Puts `inserted` in, in their order, then takes some out and puts them in again.

    Returns how many of `inserted` found room before the first that did not, and how many rounds changed the
    plan; there are none where a table found no room.
    """
    tiers = len(problem.capacity)
    settings = np.array(
        [
            *(len(plan.loads), plan.loads.shape[1] - tiers, tiers, len(problem.scale)),
            *(len(plan.choice), len(inserted), search.rounds, search.seed),
            *(search.most_workers, search.most_tables, search.window),
            problem.doublings,
        ],
        dtype=np.int64,
    )
    level_and_slack, found = np.array([problem.level, search.slack]), np.zeros(2, dtype=np.int64)
    read = (
        *(settings, problem.first, problem.candidates, problem.width, problem.counts, problem.starts),
        *(problem.shards, problem.price, problem.size, problem.scale, problem.value, problem.capacity),
        *(level_and_slack, inserted, plan.choice, plan.group_first, plan.groups, plan.loads, found),
    )
    assert all(array.flags.c_contiguous and array.dtype.itemsize == 8 for array in read)
    native.library().mg_reinsert_tables(*(array.ctypes.data for array in read))
    return int(found[0]), int(found[1])


def reinsert_tables_twin(
    problem: InsertionProblem, plan: InsertionPlan, inserted: Ints, search: InsertionSearch
) -> tuple[int, int]:
    """The plain truth of `reinsert_tables`."""
    twin = _Twin(problem, plan, search)
    count = twin.insert_all(inserted.tolist())
    return count, 0 if count < len(inserted) else sum(twin.round() for _ in range(search.rounds))


class _Twin:
    """The search, an operation at a time."""

    def __init__(self, problem: InsertionProblem, plan: InsertionPlan, search: InsertionSearch) -> None:
        self.problem, self.plan, self.search, self.state = problem, plan, search, search.seed
        self.phases = plan.loads.shape[1] - len(problem.capacity)
        self.workers = len(plan.loads)
        self.cost = [float(self.cost_of(plan.loads[worker])) for worker in range(self.workers)]
        self.total = 0.0
        for cost in self.cost:
            self.total += cost
        self.tables_on: list[list[int]] = [[] for _ in range(self.workers)]
        self.left: list[int] = []
        for table in np.flatnonzero(plan.choice >= 0).tolist():
            self.list_table(table, True)

    def uniform(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return float((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        return int(self.uniform() * count)

    def cost_of(self, loads: Floats) -> Floats:
        """Of workers with these loads."""
        cost = np.zeros(loads.shape[:-1])
        for column, (scale, value) in enumerate(zip(self.problem.scale, self.problem.value, strict=True)):
            beyond = np.maximum(loads[..., column] * scale - self.problem.level, 0.0)
            for _ in range(self.problem.doublings):
                beyond = beyond * beyond
            cost = cost + value * beyond
        return cost

    def groups_of(self, table: int) -> Ints:
        begin = int(self.plan.group_first[table])
        groups: Ints = self.plan.groups[
            begin : begin + int(self.problem.counts[self.plan.choice[table]].sum())
        ]
        return groups

    def insert_all(self, tables: list[int]) -> int:
        for number, table in enumerate(tables):
            if not self.insert(table):
                return number
        return len(tables)

    def insert(self, table: int) -> bool:
        problem, best, found = self.problem, np.inf, None
        for option in problem.candidates[problem.first[table] : problem.first[table + 1]].tolist():
            width, count = int(problem.width[option]), int(problem.counts[option].sum())
            if problem.price[option] >= best:
                break
            if count > self.num_groups(width):
                continue
            groups = self.reachable(width, count)
            start = int(problem.starts[option, 0])
            added, room = np.zeros(len(groups)), np.ones(len(groups), dtype=bool)
            for member in range(width):
                worker = groups * width + member
                after = self.plan.loads[worker] + problem.shards[start + member]
                room &= (after[:, self.phases :] <= problem.capacity).all(axis=1)
                added = added + (self.cost_of(after) - np.array(self.cost)[worker])
            groups, added = groups[room], added[room]
            if len(groups) < count:
                continue
            order = np.lexsort((groups, added))[:count]
            total = float(problem.price[option])
            for cost in added[order].tolist():
                total += cost
            if total < best:
                best, found = total, (option, groups[order])
        if found is None:
            return False
        self.plan.choice[table] = found[0]
        self.groups_of(table)[:] = found[1]
        self.put(table, 1.0)
        return True

    def num_groups(self, width: int) -> int:
        return 1 if width == self.workers else self.workers // width

    def reachable(self, width: int, count: int) -> Ints:
        groups, window = self.num_groups(width), self.search.window // width
        if not self.search.window or groups <= 2 * window or count >= window:
            return np.arange(groups)
        begin = self.below(groups)
        seen = (begin + np.arange(window)) % groups
        left = [worker for worker in self.left if (worker - begin) % groups >= window]
        return np.append(seen, left).astype(np.int64) if width == 1 else seen

    def put(self, table: int, sign: float) -> None:
        problem, loads, option = self.problem, self.plan.loads, int(self.plan.choice[table])
        width, wide = int(problem.width[option]), int(problem.counts[option, 0])
        for number, group in enumerate(self.groups_of(table).tolist()):
            start = int(problem.starts[option, int(number >= wide)])
            for member in range(width):
                worker = group * width + member
                loads[worker] += sign * problem.shards[start + member]
                self.total -= self.cost[worker]
                self.cost[worker] = float(self.cost_of(loads[worker]))
                self.total += self.cost[worker]
        self.list_table(table, sign > 0)

    def list_table(self, table: int, added: bool) -> None:
        width = int(self.problem.width[self.plan.choice[table]])
        if width == self.workers:
            return
        for group in self.groups_of(table).tolist():
            for worker in range(group * width, (group + 1) * width):
                mine = self.tables_on[worker]
                if added:
                    mine.append(table)
                else:
                    mine[mine.index(table)] = mine[-1]
                    mine.pop()

    def chosen_tables(self) -> list[int]:
        worst, begin = self.uniform() < WORST, self.below(self.workers)
        order = [*range(begin, self.workers), *range(begin)]
        relieved = int(np.argmax(self.cost)) if worst else next((w for w in order if self.cost[w] > 0), -1)
        if relieved < 0 or self.cost[relieved] <= 0:
            return []
        chosen: list[int] = []
        for number in range(2 + self.below(self.search.most_workers)):
            mine = self.tables_on[self.below(self.workers) if number else relieved]
            for _ in range(1 + self.below(self.search.most_tables)):
                table = mine[self.below(len(mine))] if mine else None
                if table is not None and table not in chosen:
                    chosen.append(table)
        return chosen

    def round(self) -> bool:
        """Says whether the plan changed."""
        taken = self.chosen_tables()
        if not taken:
            return False
        plan, price = self.plan, self.problem.price
        before = self.total
        for table in taken:
            before += float(price[plan.choice[table]])
        old = [(int(plan.choice[table]), self.groups_of(table).copy()) for table in taken]
        self.left = sorted(
            {int(group) for option, groups in old if self.problem.width[option] == 1 for group in groups}
        )
        for table in taken:
            self.put(table, -1.0)
        order = list(taken)
        for number in range(len(order), 1, -1):
            other = self.below(number)
            order[number - 1], order[other] = order[other], order[number - 1]
        if self.uniform() < SORTED:
            order.sort(key=lambda table: -float(self.problem.size[plan.choice[table]]))
        inserted = self.insert_all(order)
        after = np.inf
        if inserted == len(order):
            after = self.total
            for table in taken:
                after += float(price[plan.choice[table]])
        if after <= before + self.search.slack * self.uniform():
            return True
        for table in order[:inserted]:
            self.put(table, -1.0)
        for table, (option, groups) in zip(taken, old, strict=True):
            plan.choice[table] = option
            self.groups_of(table)[:] = groups
            self.put(table, 1.0)
        return False
