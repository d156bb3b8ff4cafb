"""`AdaptiveBudget`: what the adaptive tables of a model share, and the ranking of all their chunks.

    budget.after_step(7)      # from `EmbeddingCollection.update`; every `interval` steps it prunes and grows

Between two rankings the budget is open or closed. Open, every row that a training batch lacks begins at once;
closed, such rows only gather utility in a sketch. Nothing of it depends on how tables are cut over ranks:
numbers are added over all of them before anything is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy, BudgetSchedule

if TYPE_CHECKING:
    from megalith.embeddings.stores.adaptive.store import AdaptiveStore

AddOverRanks = Callable[[Tensor], Tensor]


def of_one_process(numbers: Tensor) -> Tensor:
    """The sum over ranks where there is one."""
    return numbers


class AdaptiveBudget:
    """The bytes of all adaptive tables, which of their chunks live, and whether rows may begin."""

    def __init__(self, policy: AdaptivePolicy, dense_bytes: int) -> None:
        """`dense_bytes` are those of all tables, on all ranks, as dense ones."""
        self.policy, self.schedule = policy, BudgetSchedule(policy, dense_bytes)
        self.stores: list[AdaptiveStore] = []
        self._last = 0
        self.is_open = True
        """Whether rows begin as soon as a training batch lacks them."""

    def join(self, store: AdaptiveStore) -> None:
        """Takes a store in; all have to be there before the first step."""
        self.stores.append(store)

    def chunks_of_new_rows(self, chunks: int) -> int:
        """How many of its `chunks` a new row begins with now; 0 where none may begin."""
        if not self.is_open:
            return 0
        return chunks if self.schedule.at(self._last) is None else min(self.policy.first_chunks, chunks)

    def utility_weight(self, step: int) -> float:
        """What gradients of a step count, so that older ones fade without being touched."""
        return float(2.0 ** (step * -math.log2(self.policy.gamma) - self._scale))

    @property
    def _scale(self) -> int:
        """Utilities are multiplied with 2 to minus this, as they grow."""
        return math.floor(self._last * -math.log2(self.policy.gamma))

    def note_absent(self, store: AdaptiveStore, absent: Tensor, utilities: Tensor) -> None:
        """Adds to what rows without a chunk are worth: int64 [rows, 2] of table and id."""

    def after_step(self, step: int, add: AddOverRanks = of_one_process) -> None:
        """Ranks all chunks if it is time."""
        if step % self.policy.interval == 0:
            self.maintain(step, add)

    def maintain(self, step: int, add: AddOverRanks) -> None:
        """Prunes and grows chunks so that all bytes fit the budget of a step."""
        before = self._scale
        self._last = step
        for store in self.stores:
            store.pool.scale_utilities(2.0 ** (before - self._scale))

    def state_dict(self) -> dict[str, Any]:
        """What the next decisions depend on, beside the rows."""
        return {"open": self.is_open}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Goes on from the state after a step."""
        self._last, self.is_open = step - step % self.policy.interval, state["open"]
