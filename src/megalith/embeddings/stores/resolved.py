"""`ResolvedIds`: a batch whose ids have become physical rows, which stay in memory until it is released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from megalith.ops.embedding.descriptors import LookupBatch

if TYPE_CHECKING:
    from megalith.embeddings.check import Indices
    from megalith.embeddings.stores.base import RowStore


class ResolvedIds:
    """Values, offsets and sample weights as the operators take them; values are physical rows.

    Whoever computes with it releases it; one that is dropped releases itself.
    """

    __slots__ = ("_tickets", "given", "is_released", "num_features", "offsets", "sample_weights", "values")

    def __init__(
        self,
        given: Indices,
        num_features: int,
        tickets: Sequence[tuple[RowStore, int]] = (),
    ) -> None:
        self.given = given
        """The batch before its ids became rows."""
        self.values, self.offsets, self.sample_weights = given
        self.num_features = num_features
        self._tickets = tickets
        self.is_released = False
        """Its rows may be gone: it must not be computed with."""

    @property
    def batch(self) -> LookupBatch:
        """As the operators take it; waits for rows that are still being read."""
        for store, ticket in self._tickets:
            store.arrive(ticket)
        return LookupBatch(self.values, self.offsets, self.sample_weights, self.num_features)

    def release(self) -> None:
        """Lets the rows leave; of no effect on tables that are whole in memory."""
        if self._tickets and not self.is_released:
            self.is_released = True
            for store, ticket in self._tickets:
                store.release(ticket)

    def __del__(self) -> None:
        self.release()
