"""`UnknownRows`: the row that ids of a dynamic table without one share, where the table lies on many workers.

Every worker with partitions of the table has a copy and reads it. Once a step, gradients of all copies are
added up over workers in one message of a vector for each table, and every copy takes the same step: that of
the one row of one process, up to the order of the sum. The first partition's worker saves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.sharding.plan import ShardingPlan


class UnknownRows:
    """Sums of gradients of the shared rows of tables that are cut; all workers call it alike."""

    def __init__(self, tables: Sequence[TableSpec], plan: ShardingPlan, comm: CommContext | None) -> None:
        cut = [
            table
            for table in tables
            if (ids := table.store_spec.ids) is not None
            and ids.unknown == "shared"
            and len(plan.placement(table.name).shards) > 1
        ]
        self._columns: dict[str, slice] = {}
        width = 0
        for table in cut:
            # One more number: of how many ids it is the sum.
            self._columns[table.name] = slice(width, width + table.dim + 1)
            width += table.dim + 1
        self._sums = torch.zeros(width)
        # Ids of coming batches and gradients of sample weights may be on their way meanwhile.
        self._all_reduce = comm.branch().all_reduce() if comm is not None and cut else None

    def add(self, table: str, gradient: Tensor, count: int) -> None:
        """Adds what a copy on this worker gets from a batch."""
        sums = self._sums[self._columns[table]]
        sums[:-1] += gradient
        sums[-1] += count

    def total(self) -> dict[str, Tensor]:
        """Of each table whose shared row any worker's ids read, the gradient; the next batch begins anew."""
        if not self._columns:
            return {}
        total, self._sums = self._sums, torch.zeros_like(self._sums)
        if self._all_reduce is not None:
            self._all_reduce.add_(total)
        own = {table: total[columns] for table, columns in self._columns.items()}
        return {table: sums[:-1] for table, sums in own.items() if sums[-1] > 0}
