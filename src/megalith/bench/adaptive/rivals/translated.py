"""`TranslatedTables`: a collection whose ids are others than the model's, behind the interface of a learner.

A method says for each lookup of the model which stored tables it reads, and how its ids are translated. It
runs in the thread that computes, batch by batch: nothing is prepared ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec, feature_order
from megalith.embeddings.check import Indices, LookupCheck
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.descriptors import Lookup, PendingTables
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.figures import AdaptiveFigures
from megalith.embeddings.stores.base import RowCache, StoreBytes, TierCounts
from megalith.embeddings.stores.dynamic.counts import DynamicCounts
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.embeddings.table_state import TableState

TranslateIds = Callable[[Tensor], Tensor]


class StoredFeature(NamedTuple):
    """A feature of stored tables: ids of one of the model's, translated."""

    name: str
    feature: str
    """Of the model."""
    translate: TranslateIds | None = None
    """None leaves ids as they are."""


def hashed(ids: Tensor, rows: int, seed: int) -> Tensor:
    """Rows of ids by a hash that depends on the seed, the same on every machine."""
    mixed = ids.long() + (((seed * 2 + 1) * 0x1E3779B97F4A7C15) & ((1 << 62) - 1))
    for shift, factor in ((30, 0x3F58476D1CE4E5B9), (27, 0x14D049BB133111EB)):
        mixed = (mixed ^ (mixed >> shift)) * factor
    return ((mixed ^ (mixed >> 31)) & ((1 << 62) - 1)) % rows


class TranslatedTables(nn.Module):
    """The tables of a method, over an `EmbeddingCollection` of what it stores."""

    prepares_ahead = False
    """What an id reads may change with every step."""

    def __init__(
        self,
        model_tables: Sequence[TableSpec],
        stored: Sequence[TableSpec],
        features: Sequence[StoredFeature],
        optimizer: RowOptimizer,
        seed: int,
    ) -> None:
        super().__init__()
        self.tables = tuple(stored)
        self.inner = EmbeddingCollection(stored, optimizer, seed)
        self._check = LookupCheck(model_tables)
        self._order = feature_order(model_tables)
        by_name = {feature.name: feature for feature in features}
        self.features = [by_name[name] for name in self.inner.features]
        self._positions = [self._order.index(feature.feature) for feature in self.features]

    @property
    def num_steps(self) -> int:
        """Steps taken."""
        return self.inner.num_steps

    @num_steps.setter
    def num_steps(self, steps: int) -> None:
        """Sets them."""
        self.inner.num_steps = steps

    @property
    def lr_factor(self) -> float:
        """Multiplies the learning rate."""
        return self.inner.lr_factor

    @lr_factor.setter
    def lr_factor(self, factor: float) -> None:
        """Sets it."""
        self.inner.lr_factor = factor

    def exchange(self, values: Tensor, offsets: Tensor, sample_weights: Tensor | None = None) -> Indices:
        """The ids of a batch as the model has them, checked."""
        return self._check.copied(values, offsets, sample_weights)

    def expect(self, indices: Indices, ahead: int) -> None:
        """Nothing is prepared ahead."""

    def resolve(self, indices: Indices, *, trains: bool, wait: bool = False) -> ResolvedIds:
        """The ids of a batch, translated as the tables are now."""
        values, offsets, sample_weights = indices
        values, offsets = values.long(), offsets.long()
        if sample_weights is not None:
            raise ConfigError("Rivals of adaptive tables take no sample weights; leave these out.")
        batch = (len(offsets) - 1) // len(self._order)
        lengths = offsets.diff().view(len(self._order), batch)
        given = [values[int(offsets[at * batch]) : int(offsets[(at + 1) * batch])] for at in self._positions]
        stored_lengths = lengths[self._positions]
        if trains:
            self.begin_step()
        translated = self.translate(given, stored_lengths, trains=trains)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), stored_lengths.reshape(-1).cumsum(0)])
        own = self.inner.exchange(torch.cat(translated), ends)
        return self.inner.resolve(own, trains=trains, wait=wait)

    def begin_step(self) -> None:
        """What a method does between two training steps."""

    def translate(self, ids: list[Tensor], lengths: Tensor, *, trains: bool) -> list[Tensor]:
        """Stored rows of each stored feature's ids; `lengths` are those of its bags, [features, batch]."""
        del lengths, trains
        return [
            own if feature.translate is None else feature.translate(own)
            for feature, own in zip(self.features, ids, strict=True)
        ]

    def start_lookup(self, resolved: ResolvedIds) -> PendingTables:
        """Looks up a batch that was resolved."""
        return self.inner.start_lookup(resolved)

    def finish_lookup(self, pending: PendingTables) -> Lookup:
        """Vectors as they are stored; `VectorHead` makes the model's of them."""
        return self.inner.finish_lookup(pending)

    def table_states(self) -> dict[str, TableState]:
        """Every stored table."""
        return self.inner.table_states()

    def policy_state(self) -> dict[str, Any]:
        """Nothing: runs of the benchmark are not resumed half-way."""
        return {}

    def load_policy_state(self, state: dict[str, Any]) -> None:
        """Takes nothing."""

    def counts(self) -> TierCounts:
        """There is one tier."""
        return TierCounts()

    def bytes(self) -> StoreBytes:
        """All that is stored."""
        return self.inner.bytes()

    def dynamic_counts_by_table(self) -> dict[str, DynamicCounts]:
        """Nothing."""
        return {}

    def dynamic_counts(self) -> None:
        """None: its tables are not dynamic."""

    def adaptive(self) -> AdaptiveFigures | None:
        """No table is adaptive."""
        return None

    def caches(self) -> list[RowCache]:
        """None."""
        return []
