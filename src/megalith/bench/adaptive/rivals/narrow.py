"""Fewer columns: one smaller dim for all tables, and mixed dims by popularity (Ginart et al., 2019)."""

from __future__ import annotations

from typing import Literal

from megalith.bench.adaptive.problem import SizeProblem, infeasible, start_scale
from megalith.bench.adaptive.rivals.plan import PlanBuilder, RivalPlan

Lift = Literal["pad", "project"]


def small_dim(problem: SizeProblem, lift: Lift = "pad") -> RivalPlan:
    """The largest dim that fits, for all governed tables; vectors are padded with zeros, or projected."""
    widest = max((table.dim for table in problem.governed), default=1)
    for dim in range(widest, 0, -1):
        dims = [min(dim, table.dim) for table in problem.governed]
        if _bytes_of(problem, dims, lift) <= problem.left:
            return _narrow(problem, dims, lift)
    raise infeasible("small_dim", _bytes_of(problem, [1] * len(problem.governed), lift), problem.left)


def mixed_dims(problem: SizeProblem, alpha: float = 0.3) -> RivalPlan:
    """Dims in proportion to popularity ** alpha, popularity of a table's ids being 1 / rows; projected.

    The factor is the largest with which all bytes fit, projections and their state included.
    """
    tables = problem.governed

    def dims_at(factor: float) -> list[int]:
        return [min(table.dim, max(1, int(factor * table.rows**-alpha))) for table in tables]

    low, high = 0.0, 2.0 * max((table.dim * table.rows**alpha for table in tables), default=1.0)
    least = _bytes_of(problem, dims_at(low), "project")
    if least > problem.left:
        raise infeasible("mixed_dims", least, problem.left)
    for _ in range(80):
        middle = (low + high) / 2
        fits = _bytes_of(problem, dims_at(middle), "project") <= problem.left
        low, high = (middle, high) if fits else (low, middle)
    return _narrow(problem, dims_at(low), "project")


def _bytes_of(problem: SizeProblem, dims: list[int], lift: Lift) -> int:
    total = 0
    for table, dim in zip(problem.governed, dims, strict=True):
        total += table.rows * problem.row_bytes(table, dim)
        if lift == "project" and dim < table.dim:
            total += problem.projection_bytes(dim, table.dim) * len(table.features)
    return total


def _narrow(problem: SizeProblem, dims: list[int], lift: Lift) -> RivalPlan:
    builder = PlanBuilder(problem)
    for table, dim in zip(problem.governed, dims, strict=True):
        if dim == table.dim:
            builder.keep(table)
        else:
            stored = table.model_copy(update={"dim": dim, "init_scale": start_scale(table)})
            builder.store(table, stored, lift)
    return builder.plan()
