"""Gradients of rows that parts of a dynamic table have in common: what ids without a row of their own read.

Every part has a copy. Its gradients are taken out before the part takes its step, added up over all parts,
and every copy takes the step with the sum (`sharding/runtime/unknown_rows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.stores.resolved import ResolvedIds
from megalith.ops.embedding.descriptors import descriptors_of


class SharedRowGradient(NamedTuple):
    """What the shared row of a table gets from a batch here."""

    table: int
    slot: int
    gradient: Tensor
    """float32 [dim]: the sum."""
    num_values: int
    """Of the values that read it and have a gradient."""


def take_shared_rows(
    collection: EmbeddingCollection,
    resolved: ResolvedIds,
    pooled: Tensor | None,
    sequences: Sequence[Tensor | None],
) -> list[SharedRowGradient]:
    """The gradients of shared rows, whose values become padding: an update leaves these rows alone."""
    uses = collection.stores.shared_rows(resolved)
    if not uses:
        return []
    batch, described = resolved.batch, descriptors_of(collection.lookups.descriptors)
    taken = []
    for use in uses:
        gradients = [torch.empty(0, collection.tables[use.table].dim)]
        for lookup in described if len(use.positions) else ():
            if lookup.table != use.table:
                continue
            edges = batch.offsets[lookup.feature * batch.size : (lookup.feature + 1) * batch.size + 1]
            inside = (use.positions >= edges[0]) & (use.positions < edges[-1])
            positions = use.positions[inside]
            if lookup.sequence >= 0:
                sequence = sequences[lookup.sequence] if sequences else None
                if sequence is not None:
                    gradients.append(sequence[positions - edges[0]].float())
            elif pooled is not None:
                samples = torch.searchsorted(edges, positions, right=True) - 1
                own = pooled[samples, lookup.column : lookup.column + lookup.dim].float()
                weights = batch.sample_weights
                gradients.append(own if weights is None else own * weights[positions, None])
        rows = torch.cat(gradients)
        taken.append(SharedRowGradient(use.table, use.slot, rows.sum(0), len(rows)))
    # In memory of their own: whoever looks at the values as they were looked up still can.
    resolved.values = resolved.values.clone()
    for use in uses:
        resolved.values[use.positions] = collection.stores.padding(use.table)
    return taken
