"""The plain twin of `reinsertion.py`: a search for a better sharding plan, an operation at a time.

Both sides add in the same order and draw the same numbers, so that they take the same decisions.
"""

from __future__ import annotations

import numpy as np

from megalith.ops.sharding.reinsertion import Floats, InsertionPlan, InsertionProblem, InsertionSearch, Ints

WORST, SORTED = 0.3, 0.7
"""How often the dearest worker is relieved, and how often the largest tables are put in first."""
MOVED, COSTLY, WIDE = 0.3, 0.5, 0.2
"""How often a block is moved and not swapped, how often it is of a worker that costs something, and how often
one of several workers is taken where it was drawn."""
RECUT, MOST_RECUT = 0.4, 8
"""How often a table is cut another way instead, and the blocks of such a table, before and after."""
_MASK = (1 << 64) - 1


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
        self.cost, self.total = [0.0] * self.workers, 0.0
        self.costly: list[int] = []
        for worker in range(self.workers):
            self.set_cost(worker, float(self.cost_of(plan.loads[worker])))
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

    def set_cost(self, worker: int, cost: float) -> None:
        """Keeps the sum of costs, and which workers cost something."""
        self.total -= self.cost[worker]
        self.cost[worker] = cost
        self.total += cost
        if cost > 0 and worker not in self.costly:
            self.costly.append(worker)
        elif cost <= 0 and worker in self.costly:
            self.costly[self.costly.index(worker)] = self.costly[-1]
            self.costly.pop()

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
            groups, total = self.reachable(width, count), float(problem.price[option])
            ranked = np.empty(0, dtype=np.int64)
            counts = problem.counts[option].tolist() if self.search.window else [count]
            for variant, own in enumerate(counts):
                added, chosen = self.rank(option, variant, own, groups[~np.isin(groups, ranked)])
                total, ranked = total + added, np.append(ranked, chosen)
            if total < best:
                best, found = total, (option, ranked)
        if found is None:
            return False
        self.plan.choice[table] = found[0]
        self.groups_of(table)[:] = found[1]
        self.put(table, 1.0)
        return True

    def rank(self, option: int, variant: int, count: int, groups: Ints) -> tuple[float, Ints]:
        """What so many blocks of a variant add where they add least, and where that is."""
        problem = self.problem
        width, start = int(problem.width[option]), int(problem.starts[option, variant])
        added, room = np.zeros(len(groups)), np.ones(len(groups), dtype=bool)
        for member in range(width if count else 0):
            worker = groups * width + member
            after = self.plan.loads[worker] + problem.shards[start + member]
            room &= (after[:, self.phases :] <= problem.capacity).all(axis=1)
            added = added + (self.cost_of(after) - np.array(self.cost)[worker])
        groups, added = groups[room], added[room]
        if len(groups) < count:
            return np.inf, groups[:0]
        order = np.lexsort((groups, added))[:count]
        total = 0.0
        for cost in added[order].tolist():
            total += cost
        return total, groups[order]

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
                self.set_cost(worker, float(self.cost_of(loads[worker])))
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

    def costly_from(self, begin: int) -> int:
        order = [*range(begin, self.workers), *range(begin)]
        return next((worker for worker in order if self.cost[worker] > 0), -1)

    def block_at(self, table: int, group: int) -> tuple[int, Floats]:
        """The position of a group among those of a table, and what its block there adds."""
        option = int(self.plan.choice[table])
        slot = self.groups_of(table).tolist().index(group)
        start = int(self.problem.starts[option, int(slot >= int(self.problem.counts[option, 0]))])
        return slot, self.problem.shards[start : start + int(self.problem.width[option])]

    def exchange(self) -> None:
        """A block of some worker moves to another group of workers as large, or swaps with one of theirs."""
        plan, width_of = self.plan, self.problem.width
        costly = self.uniform() < COSTLY and bool(self.costly)
        drawn = self.below(len(self.costly) if costly else self.workers)
        worker = self.costly[drawn] if costly else drawn
        if not self.tables_on[worker]:
            return
        table = self.tables_on[worker][self.below(len(self.tables_on[worker]))]
        width = int(width_of[plan.choice[table]])
        if width > 1 and self.uniform() >= WIDE:
            return
        if self.uniform() < RECUT:
            self.recut(table)
            return
        source, target = worker // width, self.below(self.num_groups(width))
        theirs, back = self.tables_on[target * width], -1
        if target == source or table in theirs:
            return
        if theirs and self.uniform() >= MOVED:
            begin = self.below(len(theirs))
            order = theirs[begin:] + theirs[:begin]
            back = next((other for other in order if width_of[plan.choice[other]] == width), -1)
            if back < 0 or back in self.tables_on[worker]:
                return
        slot, block = self.block_at(table, source)
        back_slot, back_block = (slot, np.zeros_like(block)) if back < 0 else self.block_at(back, target)
        allowed = self.search.exchange_slack * self.uniform()
        before = after = 0.0
        changes = []
        for member in range(width):
            one, other = source * width + member, target * width + member
            more, less = block[member], back_block[member]
            loads = (plan.loads[one] + less - more, plan.loads[other] + more - less)
            before += self.cost[one] + self.cost[other]
            after += self.cost_after(loads[0]) + self.cost_after(loads[1])
            changes += [(one, loads[0], table, back), (other, loads[1], back, table)]
        if not after - before <= allowed:
            return
        self.change(changes)
        self.groups_of(table)[slot] = target
        if back >= 0:
            self.groups_of(back)[back_slot] = source

    def cost_after(self, load: Floats) -> float:
        """Of a worker with this load; infinite where it has no room for it."""
        full = bool((load[self.phases :] > self.problem.capacity).any())
        return np.inf if full else float(self.cost_of(load))

    def change(self, changes: list[tuple[int, Floats, int, int]]) -> None:
        """Gives workers other loads, and another table instead of one; -1 for none."""
        for worker, load, gone, come in changes:
            self.plan.loads[worker] = load
            self.set_cost(worker, float(self.cost_of(load)))
            mine = self.tables_on[worker]
            if gone == come:
                continue
            if gone < 0:
                mine.append(come)
            else:
                mine[mine.index(gone)] = come if come >= 0 else mine[-1]
                if come < 0:
                    mine.pop()

    def recut(self, table: int) -> None:
        """Another option of a table, of blocks as wide: the first of these stay where the table is, in its
        order but for two that change places, and further ones go anywhere."""
        problem, option = self.problem, int(self.plan.choice[table])
        begin, width = int(problem.first[table]), int(problem.width[option])
        other = int(problem.candidates[begin + self.below(int(problem.first[table + 1]) - begin)])
        old, count = self.groups_of(table).tolist(), int(problem.counts[other].sum())
        most = max(len(old), count)
        if other == option or problem.width[other] != width or most > MOST_RECUT:
            return
        groups = list(old)
        while len(groups) < count:
            drawn = self.below(self.num_groups(width))
            if drawn in groups:
                return
            groups.append(drawn)
        one, another = self.below(len(old)), self.below(most)
        groups[one], groups[another] = groups[another], groups[one]
        allowed = self.search.exchange_slack * self.uniform()
        allowed += float(problem.price[option]) - float(problem.price[other])
        added, changes = 0.0, []
        for number, group in enumerate(groups):
            more = self.block_of(other, number)
            less = self.block_of(option, old.index(group) if group in old else len(old))
            for member in range(width):
                worker = group * width + member
                load = self.plan.loads[worker] + more[member] - less[member]
                added += self.cost_after(load) - self.cost[worker]
                changes.append((worker, load, table if group in old else -1, table if number < count else -1))
        if not added <= allowed:
            return
        self.change(changes)
        self.plan.choice[table] = other
        self.groups_of(table)[:] = groups[:count]

    def block_of(self, option: int, number: int) -> Floats:
        """What the block of this number adds to loads; nothing beyond the last."""
        wide, narrow = self.problem.counts[option].tolist()
        width, start = int(self.problem.width[option]), int(self.problem.starts[option, int(number >= wide)])
        block = self.problem.shards[start : start + width]
        return block if number < wide + narrow else np.zeros_like(block)

    def chosen_tables(self) -> list[int]:
        worst, begin = self.uniform() < WORST, self.below(self.workers)
        relieved = int(np.argmax(self.cost)) if worst else self.costly_from(begin)
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
        for _ in range(self.search.exchanges):
            self.exchange()
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
