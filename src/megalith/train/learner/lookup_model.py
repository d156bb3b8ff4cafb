"""The lookup and the dense model as one module: logits of a batch whose rows are in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from megalith.core.schema import TableSpec
from megalith.embeddings.descriptors import Lookup
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.embeddings.stores.base import RowCache, StoreBytes, TierCounts
from megalith.embeddings.stores.dynamic.counts import DynamicCounts
from megalith.embeddings.table_state import TableState
from megalith.models.base import ClickModel


class Tables(Protocol):
    """Embedding tables as a learner uses them: of one process, or a rank's part of those of many."""

    tables: tuple[TableSpec, ...]
    num_steps: int
    lr_factor: float

    @property
    def prepares_ahead(self) -> bool:
        """Whether there is something to gain from preparing batches ahead."""

    def exchange(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Any:
        """The ids of a batch whose rows are here."""

    def expect(self, indices: Any, ahead: int) -> None:
        """Says which ids come."""

    def resolve(self, indices: Any, *, trains: bool, wait: bool = False) -> Any:
        """Brings the rows of a batch into memory."""

    def start_lookup(self, resolved: Any) -> Any:
        """Looks up; vectors of other ranks are on their way."""

    def finish_lookup(self, pending: Any) -> Lookup:
        """Pooled vectors and sequences."""

    def table_states(self) -> dict[str, TableState]:
        """Every table as a checkpoint sees it."""

    def policy_state(self) -> dict[str, Any]:
        """What the next decisions on chunks depend on beside rows; empty where there are no chunks."""

    def load_policy_state(self, state: dict[str, Any]) -> None:
        """Goes on from it, after `num_steps` and the rows were loaded."""

    def counts(self) -> TierCounts:
        """What the tiers of these tables' stores did so far."""

    def dynamic_counts_by_table(self) -> dict[str, DynamicCounts]:
        """What each dynamic table did so far."""

    def dynamic_counts(self) -> DynamicCounts | None:
        """What dynamic tables did so far; None where there are none."""

    def bytes(self) -> StoreBytes:
        """What the tables take here."""

    def adaptive(self) -> AdaptiveFigures | None:
        """What adaptive tables are now; None where there are none."""

    def caches(self) -> list[RowCache]:
        """The caches of tables that are not whole in memory here."""


class LookupModel(nn.Module):
    """Logits of a batch from its numeric features and its resolved ids.

    What the model can compute without vectors is computed while they travel.
    """

    def __init__(self, dense: nn.Module, embeddings: Tables) -> None:
        super().__init__()
        self.dense = dense
        # In a tuple, and so none of the modules whose tensors DDP copies from the first rank.
        self._tables = (embeddings,)
        # A model of one's own may inherit `begin` and have a `forward` that takes no result of it.
        takes_begun = len(inspect.signature(dense.forward).parameters) > 2
        self._model = dense if isinstance(dense, ClickModel) and takes_begun else None
        self.see_gradient: Callable[[Tensor], None] | None = None
        """Is shown the gradient of the pooled vectors in each backward pass, if it is set."""

    def forward(self, features: Tensor, resolved: Any) -> Tensor:
        """Logits [samples]."""
        (embeddings,) = self._tables
        pending = embeddings.start_lookup(resolved)
        begun = None if self._model is None else self._model.begin(features)
        embedded = embeddings.finish_lookup(pending).pooled
        if self.see_gradient is not None and embedded.requires_grad:
            embedded.register_hook(self.see_gradient)
        logits: Tensor = self.dense(features, embedded, *(() if begun is None else (begun,)))
        return logits
