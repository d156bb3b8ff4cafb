"""The most bytes that adaptive tables take on their way to the budget, from settings alone.

The budget falls from the beginning's to the final one, while rows come: no more of them by a step than were
looked up by then. So the peak is where both meet. It depends on tables, batch size and schedule, never on
what memory a machine has, and real data, whose ids come again, stays below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megalith.core.schema import TableSpec
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy, BudgetSchedule

_INDEX_BYTES, _UTILITY_BYTES = 11, 2


def peak_bytes(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    policy: AdaptivePolicy,
    lookups: Mapping[str, int | None],
) -> int:
    """Of adaptive tables; `lookups` are those of a step in each, None where there may be any number."""
    schedule = BudgetSchedule(policy, memory_of(tables, [optimizer] * len(tables)).total)
    sketch = int(policy.sketch * schedule.final) if schedule.is_limited else 0
    sizes = [_row_bytes(table, optimizer, policy.chunk) for table in tables]

    def touched(step: int) -> int:
        """What all rows take that may have been looked up in so many steps."""
        total = sketch
        for table, size in zip(tables, sizes, strict=True):
            a_step = lookups.get(table.name)
            total += size * (table.rows if a_step is None else min(table.rows, step * a_step))
        return total

    def taken(step: int) -> int:
        limit = schedule.at(step)
        return touched(step) if limit is None else min(limit, touched(step))

    low, high = 0, schedule.end
    while high - low > 1:
        # One grows and the other falls: what is taken grows until they meet.
        middle = (low + high) // 2
        limit = schedule.at(middle)
        low, high = (middle, high) if limit is None or touched(middle) <= limit else (low, middle)
    return max(taken(low), taken(high))


def _row_bytes(table: TableSpec, optimizer: RowOptimizer, chunk: int) -> int:
    """A row whose chunks all live, with what says where it is and what its chunks are worth."""
    row = memory_of([table.model_copy(update={"rows": 1})], [optimizer]).total
    return row + _INDEX_BYTES + _UTILITY_BYTES * (-(-table.dim // chunk) + 1)
