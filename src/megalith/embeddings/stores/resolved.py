"""`ResolvedIds`: a batch whose ids have become physical rows, which stay in memory until it is released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from megalith.ops.embedding.descriptors import LookupBatch

if TYPE_CHECKING:
    from megalith.embeddings.check import Indices
    from megalith.embeddings.stores.base import RowStore


class HeldRows(NamedTuple):
    """The rows that one store holds for a batch."""

    store: RowStore
    ticket: int
    lookups: Tensor
    """int64 rows (table, first value, last value): the values that are its own."""
    is_only: bool = False
    """Whether all values are its own."""

    def put(self, slots: Tensor, values: Tensor) -> None:
        """Writes the slots of its own values among those of all."""
        for _, first, last in self.lookups.tolist():
            values[first:last] = slots[first:last]


class ResolvedIds:
    """Values, offsets and sample weights as the operators take them; values are physical rows.

    Whoever computes with it releases it; one that is dropped releases itself.
    """

    __slots__ = (
        "_has_arrived",
        "_held",
        "given",
        "is_released",
        "num_features",
        "offsets",
        "sample_weights",
        "values",
    )

    def __init__(self, given: Indices, num_features: int, held: Sequence[HeldRows] = ()) -> None:
        self.given = given
        """The batch before its ids became rows."""
        self.values, self.offsets, self.sample_weights = given
        self.num_features = num_features
        self._held = held
        self._has_arrived = False
        self.is_released = False
        """Its rows may be gone: it must not be computed with."""

    @property
    def held(self) -> Sequence[HeldRows]:
        """What each store holds for it."""
        return self._held

    @property
    def batch(self) -> LookupBatch:
        """As the operators take it; waits for rows that are still being read.

        Stores may decide only now which rows there are, so the first call belongs to the thread that
        computes, in the order of batches.
        """
        if not self._has_arrived:
            self._has_arrived = True
            for held in self._held:
                slots = held.store.arrive(held.ticket)
                if slots is None:
                    continue
                if held.is_only:
                    self.values = slots
                else:
                    held.put(slots, self.values)
        else:
            for held in self._held:
                slots = held.store.current(held.ticket)
                if slots is not None:
                    # In memory of their own: autograd has noted the values that were looked up.
                    self.values = self.values.clone()
                    held.put(slots, self.values)
        return LookupBatch(self.values, self.offsets, self.sample_weights, self.num_features)

    def release(self) -> None:
        """Lets the rows leave; of no effect on tables that are whole in memory."""
        if self._held and not self.is_released:
            self.is_released = True
            for held in self._held:
                held.store.release(held.ticket)

    def __del__(self) -> None:
        self.release()
