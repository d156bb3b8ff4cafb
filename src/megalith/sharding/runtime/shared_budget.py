"""`SharedBudget`: one budget for the adaptive tables of all workers.

The sharded collection makes one; `lookup.py` gives its budget to the shards of the worker and calls
`after_step` when all of them have taken a step, on all workers alike, also on one that holds no adaptive
table. What is decided follows from whole numbers that are added up over workers, so it is what one process
would decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from megalith.comm.all_reduce import AllReduce
from megalith.comm.context import CommContext
from megalith.core.schema import TableSpec
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.embeddings.stores.adaptive.make_budget import make_budget
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.base import StoredTable


class SharedBudget:
    """The `AdaptiveBudget` of a worker, and the sums over all of them that it decides by."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        optimizers: Mapping[str, RowOptimizer],
        policy: AdaptivePolicy | None,
        comm: CommContext | None,
    ) -> None:
        whole = [StoredTable(table, TableWindow.whole(table), optimizers[table.name]) for table in tables]
        self.budget: AdaptiveBudget | None = make_budget(whole, policy)
        """None where no table is adaptive."""
        self._is_first = comm is None or comm.rank == 0
        self._all_reduce: AllReduce | None = None
        if comm is not None and self.budget is not None:
            # Ids of coming batches and gradients of sample weights may be on their way meanwhile.
            self._all_reduce = comm.branch().all_reduce()

    def after_step(self, step: int) -> None:
        """Ranks all chunks if it is time; all workers call it."""
        if self.budget is not None:
            self.budget.after_step(step, self._add)

    def state_dict(self) -> dict[str, Any]:
        """What the next decisions depend on, the same on all workers, which call it together."""
        return {} if self.budget is None else self.budget.state_dict(self._add)

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Goes on from the state after a step."""
        if self.budget is not None:
            self.budget.load_state_dict(state, step, is_first=self._is_first)

    def figures(self) -> AdaptiveFigures | None:
        """What this worker's adaptive tables are now; None where no worker has any."""
        return None if self.budget is None else self.budget.figures()

    def _add(self, numbers: Tensor) -> Tensor:
        """Whole numbers, summed over all workers."""
        if self._all_reduce is None:
            return numbers
        total = numbers.contiguous().view(-1).clone()
        self._all_reduce.add_(total)
        return total.view(numbers.shape)
