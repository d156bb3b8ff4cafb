"""One linear program for HiGHS, and a start for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np

from megalith.sharding.planner.types import NUM_PHASES, Floats, Ints

RowName = int | tuple[Any, ...]
"""A row that means the same in all programs of a problem: its number, or the table and phase of
a largest piece, or its parts where it is for packing."""


def solve_program(
    cost: Floats,
    floor: Floats,
    lower: Floats,
    upper: Floats,
    entries: list[tuple[Ints, Ints, Floats]],
    start: highspy.HighsBasis | None,
) -> highspy.Highs:
    """Minimises `cost` x columns, these at least `floor`, rows between `lower` and `upper`.

    `entries` are rows, columns and values of the matrix, `start` is a basis to begin with.
    """
    row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
    order = np.lexsort((row, column))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(upper)
    model.col_cost_, model.col_lower_ = cost, floor
    model.col_upper_ = np.full(len(cost), highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = lower, upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.concatenate(([0], np.cumsum(np.bincount(column, minlength=len(cost)))))
    model.a_matrix_.index_ = row[order]
    model.a_matrix_.value_ = value[order]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(model)
    if start is not None:
        solver.setBasis(start)
    solver.run()
    return solver


class SolverBasis:
    """Where the solver ended, as a start for the next program, which has other columns and rows."""

    def __init__(self, basis: highspy.HighsBasis, kept: Ints, names: Sequence[RowName]) -> None:
        columns = list(basis.col_status)
        self._phases = columns[:NUM_PHASES]
        self._options = dict(zip(kept.tolist(), columns[NUM_PHASES:], strict=True))
        self._rows = dict(zip(names, basis.row_status, strict=True))

    def start_of(self, kept: Ints, names: Sequence[RowName]) -> highspy.HighsBasis:
        """The basis of a program with these columns and rows."""
        lower, basic = highspy.HighsBasisStatus.kLower, highspy.HighsBasisStatus.kBasic
        basis = highspy.HighsBasis()
        basis.col_status = self._phases + [self._options.get(option, lower) for option in kept.tolist()]
        basis.row_status = [self._rows.get(name, basic) for name in names]
        # Columns that are gone leave too few of them: the solver is to fill up with rows.
        basis.valid, basis.alien = True, True
        return basis
