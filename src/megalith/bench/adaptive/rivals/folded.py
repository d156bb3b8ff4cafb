"""Fewer rows than ids: the hashing trick, and a quotient with a remainder (Shi et al., 2020)."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from megalith.bench.adaptive.problem import SizeProblem, infeasible, share_rows, start_scale
from megalith.bench.adaptive.rivals.plan import PlanBuilder, RivalPlan
from megalith.bench.adaptive.rivals.translated import TranslatedTables, TranslateIds, hashed
from megalith.embeddings.optimizers import RowOptimizer


def hashing(problem: SizeProblem, power: float = 1.0) -> RivalPlan:
    """Ids of a table share fewer rows, by a seeded hash; a table has rows in proportion to ids ** power."""
    builder, tables = PlanBuilder(problem), problem.governed
    sizes = [problem.row_bytes(table) for table in tables]
    counts = share_rows([table.rows for table in tables], [1] * len(tables), sizes, problem.left, power)
    if counts is None:
        raise infeasible("hashing", sum(sizes), problem.left)
    for number, (table, rows) in enumerate(zip(tables, counts, strict=True)):
        if rows == table.rows:
            builder.keep(table)
        else:
            stored = table.model_copy(update={"rows": rows, "init_scale": start_scale(table)})
            builder.store(table, stored, translate=_hash(rows, number))
    return builder.plan()


def _hash(rows: int, seed: int) -> TranslateIds:
    return lambda ids: hashed(ids, rows, seed)


def quotient_remainder(
    problem: SizeProblem, how: Literal["multiply", "add"] = "multiply", power: float = 1.0
) -> RivalPlan:
    """Two small tables, of id // m and of id % m; their vectors are multiplied or added.

    Factors begin around 1, so that a product begins as the remainder's row. Bags of several ids are added:
    a product of sums is not the sum of products.
    """
    builder, tables = PlanBuilder(problem), problem.governed
    sizes = [problem.row_bytes(table) for table in tables]
    least = [min(table.rows, _smallest(table.rows)) for table in tables]
    counts = share_rows([table.rows for table in tables], least, sizes, problem.left, power)
    if counts is None:
        need = sum(rows * size for rows, size in zip(least, sizes, strict=True))
        raise infeasible("quotient_remainder", need, problem.left)
    factors = []
    for table, rows in zip(tables, counts, strict=True):
        if rows >= table.rows:
            builder.keep(table)
            continue
        modulus = _modulus(table.rows, rows)
        scale = {"init_scale": start_scale(table)}
        quotient = table.model_copy(
            update={"name": f"{table.name}.quotient", "rows": -(-table.rows // modulus), **scale}
        )
        remainder = table.model_copy(update={"name": f"{table.name}.remainder", "rows": modulus, **scale})
        own_how = "add" if problem.multi_hot & set(table.features) else how
        if own_how == "multiply":
            factors.append(quotient.name)
        both = [(remainder, _remainder(modulus)), (quotient, _quotient(modulus))]
        builder.store_two(table, both, own_how)

    def make(optimizer: RowOptimizer, seed: int) -> TranslatedTables:
        made = TranslatedTables(problem.tables, builder.stored, builder.features, optimizer, seed)
        for name in factors:
            made.inner.weight(name).add_(1.0)
        return made

    return builder.plan(make)


def _smallest(ids: int) -> int:
    """Fewest rows that tell so many ids apart."""
    root = math.isqrt(ids - 1) + 1 if ids > 1 else 1
    return min(modulus + -(-ids // modulus) for modulus in range(max(1, root - 2), root + 3))


def _modulus(ids: int, rows: int) -> int:
    """The most remainders with which both tables have at most so many rows."""
    low, high = math.isqrt(ids), rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle + -(-ids // middle) <= rows else (low, middle)
    around = range(max(1, low - 2), low + 4)
    return max(modulus for modulus in around if modulus + -(-ids // modulus) <= rows)


def _remainder(modulus: int) -> TranslateIds:
    def translate(ids: Tensor) -> Tensor:
        return ids % modulus

    return translate


def _quotient(modulus: int) -> TranslateIds:
    def translate(ids: Tensor) -> Tensor:
        return ids // modulus

    return translate
