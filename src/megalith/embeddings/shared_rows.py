"""Gradients of rows that parts of a dynamic table have in common: what ids without a row of their own read.

Every part has a copy. Its gradients are taken out before the part takes its step, added up over all parts,
and every copy takes the step with the sum (`sharding/runtime/unknown_rows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.optimizers import SGD, StepSettings
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.ops.embedding.descriptors import (
    LAYOUTS,
    LookupBatch,
    LookupDescriptor,
    OutputGradients,
    descriptors_of,
)
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.tensors import STORED_DTYPES

_SUM, _OTHERS = 0, 1
"""Rows of what gradients are summed in: the sum, and what all other values are taken for."""
_TABLE, _DTYPE = (LookupDescriptor._fields.index(name) for name in ("table", "dtype"))


class SharedRowGradient(NamedTuple):
    """What the shared row of a table gets from a batch here."""

    table: int
    slot: int
    gradient: Tensor
    """float32 [dim]: the sum."""
    num_values: int
    """That read it and have a gradient."""


class SharedRowGradients:
    """Takes the gradients of shared rows out of batches of a collection, and takes the steps of these rows.

    A step of SGD on a row of zeros is the sum of its gradients, by the kernels and in the order of any row.
    """

    def __init__(self, collection: EmbeddingCollection) -> None:
        self._collection = collection
        self._sums = [torch.zeros(2, table.dim) for table in collection.tables]
        count, none = len(self._sums), torch.empty(0)
        self._native = NativeTables(self._sums, [none] * count, [none] * count)
        whole = [LAYOUTS.index("whole")] * count
        lookups = collection.lookups.over(
            [2] * count, [_OTHERS] * count, one_feature_each=False, layouts=whole
        )
        self._descriptors = lookups.descriptors.clone()
        self._descriptors[:, _DTYPE] = STORED_DTYPES.index(torch.float32)
        self._steps = StepSettings([SGD(lr=1.0)] * count).at(1, 1.0, False)
        rows = collection.stores.rows
        tables = ([own.weight for own in rows], [own.first for own in rows], [own.second for own in rows])
        self._rows = NativeTables(*tables, [own.ids for own in rows], collection.stores.pools)

    def take(
        self, resolved: ResolvedIds, pooled: Tensor | None, sequences: Sequence[Tensor | None]
    ) -> list[SharedRowGradient]:
        """The gradients of shared rows, whose values become padding: an update leaves these rows alone."""
        uses = self._collection.stores.shared_rows(resolved)
        if not uses:
            return []
        batch = resolved.batch
        tables = torch.tensor([use.table for use in uses])
        descriptors = self._descriptors[torch.isin(self._descriptors[:, _TABLE], tables)].contiguous()
        values = torch.full(batch.values.shape, _OTHERS, dtype=torch.int32)
        # In memory of their own: whoever looks at the values as they were looked up still can.
        resolved.values = resolved.values.clone()
        for use in uses:
            values[use.positions] = _SUM
            resolved.values[use.positions] = self._collection.stores.padding(use.table)
        gradients = OutputGradients(pooled, sequences)
        rounding = self._collection.rounding()
        self._native.backward_(self._steps, descriptors, batch._replace(values=values), gradients, rounding)
        edges = batch.offsets[:: batch.size] if batch.size else torch.zeros(batch.num_features + 1)
        counts = dict.fromkeys(tables.tolist(), 0)
        positions = {use.table: use.positions for use in uses}
        for lookup in descriptors_of(descriptors):
            given = pooled if lookup.sequence < 0 else sequences[lookup.sequence]
            if given is not None:
                inside = torch.searchsorted(
                    positions[lookup.table], edges[lookup.feature : lookup.feature + 2].contiguous()
                )
                counts[lookup.table] += int(inside[1] - inside[0])
        taken = []
        for use in uses:
            total = self._sums[use.table][_SUM]
            taken.append(SharedRowGradient(use.table, use.slot, -total, counts[use.table]))
            total.zero_()
        return taken

    def step(self, slots: Mapping[int, int], gradients: Sequence[Tensor]) -> None:
        """The step that the collection took last, on the shared rows of some tables: their numbers and slots.

        `gradients` are the sums of what each of these rows gets.
        """
        collection, count = self._collection, len(slots)
        descriptors = collection.lookups.rows_of(list(slots))
        batch = LookupBatch(torch.tensor(list(slots.values())), torch.arange(count + 1), None, count)
        summed = OutputGradients(torch.cat(list(gradients)).view(1, -1))
        self._rows.backward_(collection.steps(), descriptors, batch, summed, collection.rounding())
