"""The linear program under the lower bound: tables may mix options, workers share all loads evenly.

For any plan and any phase the most loaded worker has at least the mean load, and at least the largest piece
of any table. With multipliers m[p] >= 0 on means, h[t, p] >= 0 on the largest piece of table t, s[p] >= 0 on
a floor that the phase is known to reach, and n[k] >= 0 on the bytes of tier k, such that

    m[p] + sum over t of h[t, p] + s[p] <= weight[p]            for every phase

no plan is quicker than

    sum over tables of min over options (m x total / workers + h x largest piece + n x bytes)
    + s x floor - n x bytes of all workers

because tables then choose their options apart from each other. Packing rows (`packing_rows.py`) are as tiers
whose bytes are counts. Tables that are alike are one class (`table_classes.py`). HiGHS finds the best
multipliers as the duals of the program; the value is computed again from them by this formula, so it is a
bound however exactly the program was solved, and whichever options it saw: a large program begins with a few
options of each table and takes in those that the multipliers show to be cheaper (column generation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np

from megalith.sharding.planner.bound.linear_program import RowName, SolverBasis, solve_program
from megalith.sharding.planner.bound.packing_rows import PackingRow, PackingRows
from megalith.sharding.planner.bound.pattern_rows import PatternRow, PatternRows
from megalith.sharding.planner.bound.table_classes import KindOptions, TableClasses, alike_tables
from megalith.sharding.planner.types import NUM_PHASES, Flags, Floats, Ints, PlacementProblem

_ROUNDS = 6
_MANY = 6000
"""Options from which a program is solved by column generation."""
_FEW = 4
"""Options of a table that such a program begins with: by what they cost at the last prices, and spread over
all that there are."""
_WARM = 3000
"""Options from which a program starts where the last one ended; smaller ones are solved as quickly anew."""
_COLUMN_ROUNDS = 8
_CLOSE = 1e-4
"""Between the program and the bound, what is not worth more columns."""
_GAIN = 1e-4
"""Of a large program, what rows for largest pieces must still bring to be looked for again."""


LimitRow = PackingRow | PatternRow
"""What the options of a plan add up to at most, besides bytes."""


@dataclass(frozen=True)
class RelaxedPlan:
    """A solved program."""

    seconds: float
    """The bound, by the formula."""
    phase_seconds: Floats
    mixture: Floats
    """Share of each option."""
    reduced: Floats
    """Of each option: how much the bound rises if its table has to take it; infinite where it may not."""
    memory_price: Floats
    """Of a byte of each tier, in seconds."""


class PlanRelaxation:
    """The linear program of one problem, for any options that are allowed and minimums of phases."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.total = problem.total[:, :NUM_PHASES] / problem.world_size
        self.peak = problem.peak[:, :NUM_PHASES]
        self.memory = problem.total[:, NUM_PHASES:]
        # Pieces that fit on no worker can be in no plan.
        room = problem.capacity * (1 + 1e-9)
        self.fitting: Flags = np.asarray(np.all(problem.peak[:, NUM_PHASES:] <= room, axis=1))
        self.alike = alike_tables(problem)
        self._kinds = kinds = KindOptions(problem, self.alike)
        self.packing, self.patterns = PackingRows(problem, kinds), PatternRows(problem, kinds)
        self._kept: dict[tuple[int, bool, tuple[LimitRow, ...], bytes], Ints] = {}
        self._hard: set[tuple[int, int]] = set()
        self._rows: dict[LimitRow, None] = {}
        """Packing rows that a mixture broke before."""
        self._prices: Floats | None = None
        """What each option cost at the multipliers found last."""
        self._basis: SolverBasis | None = None
        self._known: dict[tuple[bytes, bytes, bytes], RelaxedPlan | None] = {}

    def solve(self, minimums: Floats, caps: Floats, usable: Flags | None = None) -> RelaxedPlan | None:
        """The bound of plans of `usable` options whose phases take at least `minimums` and at most `caps`;
        None if there is no such plan."""
        allowed = self.fitting & np.asarray(np.all(self.peak <= caps, axis=1))
        if usable is not None:
            allowed &= usable
        key = (minimums.tobytes(), caps.tobytes(), allowed.tobytes())
        if key not in self._known:
            self._known[key] = self._tightened(allowed, minimums, caps)
        return self._known[key]

    def _tightened(self, allowed: Flags, minimums: Floats, caps: Floats) -> RelaxedPlan | None:
        """With rows for largest pieces and for packing where they matter."""
        if not np.logical_or.reduceat(allowed, self.problem.first[:-1]).all():
            return None
        relaxed = None
        # Where the last program ended is a good start for one with more rows or columns, not with others.
        self._basis = None
        classes = TableClasses(self.problem, self.alike, allowed)
        for _ in range(_ROUNDS):
            # Rows of a phase hold where it has that cap, or a lower one.
            rooms = np.array([*caps, *self.problem.capacity])
            rows = tuple(row for row in self._rows if row.holds(rooms))
            before, kept = relaxed, self._worth_keeping(allowed, classes, rows)
            relaxed = self._solved(_Rows(allowed, classes, sorted(self._hard), rows, minimums), kept)
            if relaxed is None:
                return None
            violated = self._violated(relaxed) - self._hard
            broken = self._broken(relaxed.mixture, caps) - {*rows}
            if not violated and not broken:
                break
            self._hard |= violated
            self._rows.update(dict.fromkeys(sorted(broken, key=repr)))
            if before and len(kept) > _MANY and relaxed.seconds < before.seconds * (1 + _GAIN):
                break
        return relaxed

    def _solved(self, rows: _Rows, kept: Ints) -> RelaxedPlan | None:
        """The program with these rows, of the options that are worth keeping."""
        columns = kept
        if len(kept) > _MANY:
            columns = self._few(kept)
            for _ in range(_COLUMN_ROUNDS):
                solved = self._program(columns, rows)
                if solved is None:
                    # The few do not fit together.
                    break
                relaxed = self._certified(rows, *solved)
                cheaper = self._cheaper(columns, kept)
                reached = float(self.problem.weights @ solved[0])
                if not len(cheaper) or relaxed.seconds >= reached * (1 - _CLOSE):
                    return relaxed
                columns = np.union1d(columns, cheaper)
            columns = kept
        solved = self._program(columns, rows)
        return None if solved is None else self._certified(rows, *solved)

    def _few(self, kept: Ints) -> Ints:
        """Some options of each table to begin with."""
        costs = [self.total[kept] @ self.problem.weights]
        if self._prices is not None:
            costs.append(self._prices[kept])
        owner = self.problem.table[kept]
        chosen = np.zeros(len(kept), dtype=bool)
        size = np.bincount(owner, minlength=self.problem.num_tables)[owner]
        for cost in costs:
            order = np.lexsort((cost, owner))
            position = np.arange(len(kept)) - np.searchsorted(owner, owner)
            chosen[order[position < _FEW]] = True
        # From the cheapest to the costliest in all, which have the smallest pieces.
        order = np.lexsort((costs[0], owner))
        chosen[order[position * _FEW // size != (position - 1) * _FEW // size]] = True
        return kept[chosen]

    def _cheaper(self, columns: Ints, kept: Ints) -> Ints:
        """Options that cost less at the present multipliers than all of their table in the program."""
        assert self._prices is not None
        best = np.full(self.problem.num_tables, np.inf)
        np.minimum.at(best, self.problem.table[columns], self._prices[columns])
        slack = 1e-7 * np.maximum(np.abs(best), 1e-30)
        return kept[self._prices[kept] < (best - slack)[self.problem.table[kept]]]

    def _worth_keeping(self, allowed: Flags, classes: TableClasses, rows: tuple[LimitRow, ...]) -> Ints:
        """Allowed options of a table of each class that are not worse than another one of it in all that the
        program sees: largest pieces count only for tables with a row for them."""
        problem = self.problem
        if self.patterns.few:
            # So few columns take less time to solve than to compare.
            firsts = np.isin(problem.table, classes.first)
            return np.flatnonzero(allowed & firsts)
        with_pieces = {table for table, _ in self._hard}
        kept = []
        for table in classes.first.tolist():
            begin, end = int(problem.first[table]), int(problem.first[table + 1])
            mask = allowed[begin:end]
            key = (table, table in with_pieces, rows, mask.tobytes())
            if key not in self._kept:
                options = begin + np.flatnonzero(mask)
                figures = [problem.total[options]]
                if table in with_pieces:
                    figures.append(self.peak[options])
                figures += [self._counts(row)[self._kinds.place[options], None] for row in rows]
                self._kept[key] = options[undominated(np.hstack(figures))]
            kept.append(self._kept[key])
        return np.concatenate(kept)

    def _broken(self, mixture: Floats, caps: Floats) -> set[LimitRow]:
        """Rows for packing that a mixture breaks; patterns, which take longest, where no other is."""
        return {*self.packing.violated(mixture, caps)} or {*self.patterns.violated(mixture, caps)}

    def _violated(self, relaxed: RelaxedPlan) -> set[tuple[int, int]]:
        """Tables whose mixture has a larger piece than the phase has seconds."""
        pieces = np.zeros((self.problem.num_tables, NUM_PHASES))
        present = np.flatnonzero(relaxed.mixture)
        np.add.at(pieces, self.problem.table[present], relaxed.mixture[present, None] * self.peak[present])
        over = (pieces > relaxed.phase_seconds * (1 + 1e-6) + 1e-15) & (self.problem.weights > 0)
        return {(int(table), int(phase)) for table, phase in np.argwhere(over)}

    def _program(self, kept: Ints, rows: _Rows) -> tuple[Floats, Floats, Floats, Floats, Floats] | None:
        """Phase seconds, mixture, and the prices of means, pieces and bytes. Variables are the phases'
        seconds, then the options' shares; rows are means, tiers, packing, pieces, classes of tables."""
        problem, phases, classes = self.problem, NUM_PHASES, rows.classes
        # Seconds and bytes in units near 1.
        unit = max(float(self.total.sum(axis=1).max()), 1e-12)
        limited, limits = self._limited(rows)
        owner, position = classes.number[problem.table[kept]], np.arange(len(kept)) + phases
        first_piece = phases + len(limits)
        # Tables of a class have the same pieces: one row says it of all.
        hard = [(table, phase) for table, phase in rows.hard if table in classes.members]
        first_table = first_piece + len(hard)
        entries: list[tuple[Ints, Ints, Floats]] = [(first_table + owner, position, np.ones(len(kept)))]
        for phase in range(phases):
            entries.append((np.full(len(kept), phase), position, self.total[kept, phase] / unit))
            entries.append((np.array([phase]), np.array([phase]), np.array([-1.0])))
        for number, limit in enumerate(limits):
            scaled = limited(number, kept) / limit
            chosen = np.flatnonzero(scaled)
            entries.append((np.full(len(chosen), phases + number), position[chosen], scaled[chosen]))
        begins = np.searchsorted(owner, np.arange(len(classes.first) + 1))
        for number, (table, phase) in enumerate(hard):
            mine = np.arange(begins[classes.number[table]], begins[classes.number[table] + 1])
            row, peak = first_piece + number, self.peak[kept[mine], phase] / classes.members[table]
            entries.append((np.full(len(mine), row), position[mine], peak / unit))
            entries.append((np.array([row]), np.array([phase]), np.array([-1.0])))
        upper = np.zeros(first_table + len(classes.first))
        upper[phases:first_piece] = 1.0
        upper[first_table:] = list(classes.members.values())
        lower = np.full(len(upper), -highspy.kHighsInf)
        lower[first_table:] = upper[first_table:]
        cost = np.concatenate((problem.weights, np.zeros(len(kept))))
        floor = np.concatenate((rows.minimums / unit, np.zeros(len(kept))))
        names: list[RowName] = [*range(phases + problem.capacity.shape[0]), *rows.packing, *hard]
        names += [(int(table), -1) for table in classes.first]
        start = None if self._basis is None else self._basis.start_of(kept, names)
        solver = solve_program(cost, floor, lower, upper, entries, start)
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        warm = len(kept) > _WARM or self.patterns.few
        self._basis = SolverBasis(solver.getBasis(), kept, names) if warm else None
        solution = solver.getSolution()
        values, dual = np.array(solution.col_value), np.maximum(-np.array(solution.row_dual), 0.0)
        mixture = np.zeros(len(problem.table))
        mixture[kept] = values[phases:]
        pieces = np.zeros((len(classes.first), NUM_PHASES))
        for (table, phase), value in zip(hard, dual[first_piece:first_table], strict=True):
            pieces[classes.number[table], phase] = value
        return (
            values[:phases] * unit,
            classes.spread(mixture),
            dual[:phases],
            (pieces / np.array(list(classes.members.values()))[:, None])[classes.number],
            dual[phases:first_piece] / limits * unit,
        )

    def _limited(self, rows: _Rows) -> tuple[Callable[[int, Ints], Floats], Floats]:
        """What is limited for all workers together, by its number, of some options: bytes of tiers, then
        counts of packing rows; and how much of each there is."""
        tiers = len(self.problem.capacity)

        def limited(number: int, options: Ints) -> Floats:
            if number < tiers:
                return np.asarray(self.memory[options, number])
            return self._counts(rows.packing[number - tiers])[self._kinds.place[options]]

        room = np.maximum(self.problem.capacity * self.problem.world_size, 1.0)
        return limited, np.array([*room, *map(self._limit, rows.packing)])

    def _counts(self, row: LimitRow) -> Floats:
        return self.packing.counts(row) if isinstance(row, PackingRow) else self.patterns.counts(row)

    def _limit(self, row: LimitRow) -> float:
        return self.packing.limit(row) if isinstance(row, PackingRow) else self.patterns.limit

    def _certified(
        self, rows: _Rows, phase_seconds: Floats, mixture: Floats, mean: Floats, pieces: Floats, price: Floats
    ) -> RelaxedPlan:
        """The formula, with multipliers scaled down to where they are allowed."""
        problem = self.problem
        used = mean + pieces.sum(axis=0)
        scale = np.minimum(1.0, problem.weights / np.maximum(used, 1e-30))
        cost = self.total @ (mean * scale) + (self.peak * (pieces * scale)[problem.table]).sum(axis=1)
        limits = self._limited(rows)[1]
        tiers, kinds = len(problem.capacity), self._kinds
        cost += self.memory @ price[:tiers]
        for_kinds = np.zeros(len(kinds.options))
        for number in np.flatnonzero(price[tiers:]).tolist():
            for_kinds += self._counts(rows.packing[number]) * price[tiers + number]
        cost += for_kinds[kinds.place]
        self._prices = cost
        cost = np.where(rows.allowed, cost, np.inf)
        cheapest = np.minimum.reduceat(cost, problem.first[:-1])
        rest = np.maximum(problem.weights - used * scale, 0.0)
        seconds = float(cheapest.sum()) + float(rest @ rows.minimums) - float(price @ limits)
        reduced = cost - cheapest[problem.table]
        memory_price = price[: len(problem.capacity)]
        return RelaxedPlan(max(seconds, 0.0), phase_seconds, mixture, reduced, memory_price)


@dataclass(frozen=True)
class _Rows:
    """What a program is of, besides its columns."""

    allowed: Flags
    classes: TableClasses
    hard: list[tuple[int, int]]
    """Tables and phases with a row for the largest piece."""
    packing: tuple[LimitRow, ...]
    minimums: Floats


def undominated(figures: Floats) -> Flags:
    """Rows that no other row is at most equal to in every column; of equal rows the first."""
    no_worse = np.ones((len(figures), len(figures)), dtype=bool)
    for column in figures.T:
        no_worse &= column[:, None] <= column[None, :]
    number = np.arange(len(figures))
    earlier = number[:, None] < number[None, :]
    beaten = (no_worse & ~no_worse.T) | (no_worse & no_worse.T & earlier)
    return np.asarray(~beaten.any(axis=0))
