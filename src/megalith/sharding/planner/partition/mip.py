"""The exact plan of a small problem, by mixed-integer programming (HiGHS).

Binary variables say which option a table takes and to which group each of its blocks goes; the phases'
seconds are above every worker's load and, where workers share hosts, above every host's; memory is a row for
each worker and tier. Options that the linear bound shows to be in no plan better than the known one are left
out beforehand. The known plan is where the solver starts, and what it proves on the way is a lower bound too.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np

from megalith.core.bounds import checked_bound
from megalith.sharding.planner.bound.kind_sets import OPTIONAL_KINDS
from megalith.sharding.planner.loads import extra_latency, loads_of, phase_seconds, solution_seconds
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Floats,
    Ints,
    LowerBound,
    PlacementProblem,
    PlacementSolution,
)

MOST_VARIABLES = 20_000
"""Above it the solver would not get far in seconds."""
COUNTED_NODES, COUNTED_VARIABLES = 100, 100
"""Where steps are counted: nodes that the solver may open, and the size up to which the first is quick."""
_TOLERANCE = 1e-6
"""How far from feasible the solver's rows may be, in units of the largest load."""


def promising(problem: PlacementProblem, bound: LowerBound, known_seconds: float) -> Ints:
    """Options that a plan quicker than `known_seconds` may have."""
    room = max(known_seconds - bound.root_seconds, 0.0) * (1 + 1e-9) + 1e-15
    return np.flatnonzero(bound.reduced <= room)


def num_variables(problem: PlacementProblem, options: Ints) -> int:
    """How large the program of these options is."""
    groups = np.array([problem.num_groups(int(option)) for option in options])
    return int((groups * (problem.counts[options] > 0).sum(axis=1)).sum()) + len(options)


def solve_exactly(
    problem: PlacementProblem, bound: LowerBound, known: PlacementSolution, seconds: float | None
) -> tuple[PlacementSolution, float] | None:
    """The best plan found, no slower than `known`, and a proven bound; None if the problem is too large.

    Stops after `seconds`, or where that is None after a number of nodes."""
    known_seconds = solution_seconds(problem, known)
    chosen = set(known.choice.tolist())
    options = np.array(
        sorted(chosen | set(promising(problem, bound, known_seconds).tolist())), dtype=np.int64
    )
    if num_variables(problem, options) > (COUNTED_VARIABLES if seconds is None else MOST_VARIABLES):
        return None
    model = _Model(problem, options)
    solver = model.solver(seconds)
    start = highspy.HighsSolution()
    start.col_value = model.values_of(known).tolist()
    solver.setSolution(start)
    solver.run()
    proven = bound.seconds
    information = solver.getInfo()
    if np.isfinite(information.mip_dual_bound):
        dual = (information.mip_dual_bound - _TOLERANCE) * model.unit + problem.latency_seconds
        # Options that were left out are in no plan that is quicker than the known one.
        proven = max(proven, min(dual, known_seconds))
    values = np.array(solver.getSolution().col_value)
    solution = model.solution_of(values) if len(values) == model.num_columns else known
    if solution_seconds(problem, solution) > known_seconds:
        solution = known
    best = solution_seconds(problem, solution)
    return solution, checked_bound(proven, best, "the exact search")


class _Model:
    """Columns: seconds of the phases, use of optional collectives, options, groups of blocks."""

    def __init__(self, problem: PlacementProblem, options: Ints) -> None:
        self.problem, self.options = problem, options
        self.unit = max(float(problem.total[options, :NUM_PHASES].sum(axis=1).max()), 1e-12)
        self.first_option = NUM_PHASES + len(OPTIONAL_KINDS)
        self.group_columns: list[tuple[int, int, int, int]] = []
        """Of each column of a group: position of its option, variant, group, column."""
        column = self.first_option + len(options)
        self.columns_of: dict[tuple[int, int, int], int] = {}
        for position, option in enumerate(options.tolist()):
            for variant in range(2):
                for group in range(problem.num_groups(option) if problem.counts[option, variant] else 0):
                    self.group_columns.append((position, variant, group, column))
                    self.columns_of[position, variant, group] = column
                    column += 1
        self.num_columns = column

    def solver(self, seconds: float | None) -> highspy.Highs:
        problem, size, tiers = self.problem, self.problem.world_size, len(self.problem.capacity)
        rows: list[tuple[float, float, list[int], list[float]]] = []
        infinity = highspy.kHighsInf
        scale = np.concatenate((np.full(NUM_PHASES, self.unit), np.maximum(problem.capacity, 1.0)))
        load_rows: list[tuple[list[int], list[float]]] = [
            ([], []) for _ in range(size * (NUM_PHASES + tiers))
        ]
        together: dict[tuple[int, int], list[int]] = {}
        for position, variant, group, column in self.group_columns:
            option = int(self.options[position])
            width, start = int(problem.width[option]), int(problem.starts[option, variant])
            together.setdefault((position, group), []).append(column)
            for member in range(width):
                loads = problem.shards[start + member] / scale
                for part, load in enumerate(loads.tolist()):
                    if load:
                        columns, values = load_rows[(group * width + member) * len(scale) + part]
                        columns.append(column)
                        values.append(load)
        idle = problem.topology.idle_peer_factor
        for number, (columns, values) in enumerate(load_rows):
            part = number % len(scale)
            if part < NUM_PHASES:
                rows.append((-infinity, 0.0, [*columns, part], [*(idle * load for load in values), -1.0]))
            else:
                rows.append((-infinity, 1.0, columns, values))
        if idle < 1.0:
            rows += self._host_rows(load_rows, len(scale))
        rows += [(-infinity, 1.0, columns, [1.0] * len(columns)) for columns in together.values()]
        for table in range(problem.num_tables):
            mine = [self.first_option + int(position) for position in np.flatnonzero(self._tables() == table)]
            rows.append((1.0, 1.0, mine, [1.0] * len(mine)))
        for position, option in enumerate(self.options.tolist()):
            for variant in range(2):
                count = int(problem.counts[option, variant])
                if count:
                    placed = [
                        self.columns_of[position, variant, group]
                        for group in range(problem.num_groups(option))
                    ]
                    rows.append(
                        (0.0, 0.0, [*placed, self.first_option + position], [1.0] * len(placed) + [-count])
                    )
            for number, kinds in enumerate(OPTIONAL_KINDS):
                if problem.options[option].kind in kinds:
                    pair = [self.first_option + position, NUM_PHASES + number]
                    rows.append((-infinity, 0.0, pair, [1.0, -1.0]))
        return self._passed(rows, seconds)

    def _host_rows(
        self, load_rows: list[tuple[list[int], list[float]]], stride: int
    ) -> list[tuple[float, float, list[int], list[float]]]:
        """A phase takes as long as each host needs for all of its workers."""
        size, per_node = self.problem.world_size, self.problem.topology.per_node
        rows = []
        for first in range(0, size, per_node):
            for phase in range(NUM_PHASES):
                summed: dict[int, float] = {}
                for worker in range(first, min(first + per_node, size)):
                    for column, value in zip(*load_rows[worker * stride + phase], strict=True):
                        summed[column] = summed.get(column, 0.0) + value / per_node
                rows.append((-highspy.kHighsInf, 0.0, [*summed, phase], [*summed.values(), -1.0]))
        return rows

    def _tables(self) -> Ints:
        return np.asarray(self.problem.table[self.options])

    def _passed(
        self, rows: Sequence[tuple[float, float, list[int], list[float]]], seconds: float | None
    ) -> highspy.Highs:
        problem, columns = self.problem, self.num_columns
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = columns, len(rows)
        cost = np.zeros(columns)
        cost[:NUM_PHASES] = problem.weights
        for number, kinds in enumerate(OPTIONAL_KINDS):
            cost[NUM_PHASES + number] = extra_latency(problem.topology, set(kinds)) / self.unit
        model.col_cost_ = cost
        model.col_lower_ = np.zeros(columns)
        upper = np.ones(columns)
        upper[:NUM_PHASES] = highspy.kHighsInf
        model.col_upper_ = upper
        whole = [highspy.HighsVarType.kContinuous] * NUM_PHASES
        model.integrality_ = whole + [highspy.HighsVarType.kInteger] * (columns - NUM_PHASES)
        model.row_lower_ = np.array([row[0] for row in rows])
        model.row_upper_ = np.array([row[1] for row in rows])
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = [len(row[2]) for row in rows]
        model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(lengths)))
        model.a_matrix_.index_ = np.array([column for row in rows for column in row[2]])
        model.a_matrix_.value_ = np.array([value for row in rows for value in row[3]], dtype=np.float64)
        solver = highspy.Highs()
        limit = ("mip_max_nodes", COUNTED_NODES) if seconds is None else ("time_limit", float(seconds))
        for name, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-4), limit):
            solver.setOptionValue(name, value)
        solver.passModel(model)
        return solver

    def values_of(self, solution: PlacementSolution) -> Floats:
        """The columns that stand for a plan."""
        problem = self.problem
        values = np.zeros(self.num_columns)
        loads = loads_of(problem, solution)
        values[:NUM_PHASES] = phase_seconds(problem.topology, loads) / self.unit
        where = {int(option): position for position, option in enumerate(self.options)}
        for table, option in enumerate(solution.choice.tolist()):
            position = where[option]
            values[self.first_option + position] = 1.0
            wide = int(problem.counts[option, 0])
            for number, group in enumerate(solution.groups[table].tolist()):
                values[self.columns_of[position, int(number >= wide), group]] = 1.0
            for number, kinds in enumerate(OPTIONAL_KINDS):
                if problem.options[option].kind in kinds:
                    values[NUM_PHASES + number] = 1.0
        return values

    def solution_of(self, values: Floats) -> PlacementSolution:
        """The plan that columns stand for."""
        problem = self.problem
        taken = np.flatnonzero(values[self.first_option : self.first_option + len(self.options)] > 0.5)
        choice = np.empty(problem.num_tables, dtype=np.int64)
        groups: list[Ints] = [np.empty(0, dtype=np.int64)] * problem.num_tables
        for position in taken.tolist():
            option = int(self.options[position])
            table = int(problem.table[option])
            choice[table] = option
            groups[table] = np.array(
                [
                    group
                    for variant in range(2)
                    for group in range(problem.num_groups(option))
                    if values[self.columns_of.get((position, variant, group), 0)] > 0.5
                    and (position, variant, group) in self.columns_of
                ],
                dtype=np.int64,
            )
        return PlacementSolution(choice, groups)
