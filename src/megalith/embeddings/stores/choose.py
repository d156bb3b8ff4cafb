"""Which tables are worth a tiered store, where memory is limited."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.schema import TableSpec
from megalith.core.store_spec import DenseSpec, StoreSpec, TieredSpec
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer

DENSE_PART = 1 / 16
"""Of the budget, for all tables together that stay in memory whole."""


def choose_stores(
    tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer], dram: int
) -> list[StoreSpec]:
    """The store of each table under a budget: the smallest ones are dense, up to a sixteenth of it.

    Their rows would stay in a cache anyway, and a dense table has nothing to look up there.
    """
    sizes = [
        memory_of([table], [optimizer]).total for table, optimizer in zip(tables, optimizers, strict=True)
    ]
    chosen: list[StoreSpec] = [TieredSpec()] * len(tables)
    left = dram * DENSE_PART
    for number in sorted(range(len(tables)), key=lambda number: (sizes[number], number)):
        left -= sizes[number]
        if left < 0:
            break
        chosen[number] = DenseSpec()
    return chosen


def is_whole(table: TableSpec) -> bool:
    """Whether every row of a table is in memory."""
    return table.store is None or isinstance(table.store, DenseSpec)
