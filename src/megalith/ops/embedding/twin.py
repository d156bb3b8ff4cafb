"""The plain-torch truth of the lookups: same arguments, same results, one lookup at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.embedding.descriptors import POOLINGS, LookupBatch, LookupDescriptor, descriptors_of
from megalith.ops.embedding.pooling import pooled_lookup, value_gradients, without_padding


class LookupBags(NamedTuple):
    """The values of one lookup with offsets from 0, padding left out."""

    values: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    kept: Tensor
    """Which of the lookup's values these are."""
    begin: int
    """Where its values begin in the batch."""


def embedding_forward_twin(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    output_dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """Pooled vectors [batch, output_dim]."""
    batch = LookupBatch(values, offsets, sample_weights, num_features)
    out = torch.empty(batch.size, output_dim, device=values.device)
    for lookup in descriptors_of(descriptors):
        bags = bags_of(lookup, batch)
        pooled = pooled_lookup(
            weights[lookup.table], bags.values, bags.offsets, POOLINGS[lookup.pooling], bags.sample_weights
        )
        out[:, lookup.column : lookup.column + lookup.dim] = pooled
    return out.to(dtype)


def embedding_sequence_twin(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    number: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    """The vectors of lookup `number`, which does not pool, [ids, dim]."""
    lookup = descriptors_of(descriptors)[number]
    bags = bags_of(lookup, LookupBatch(values, offsets, None, num_features))
    out = torch.zeros(len(bags.kept), dim, device=values.device)
    out[bags.kept] = weights[lookup.table][bags.values].float()
    return out.to(dtype)


def sample_weight_gradient_twin(
    weights: Sequence[Tensor],
    descriptors: Tensor,
    values: Tensor,
    offsets: Tensor,
    sample_weights: Tensor | None,
    num_features: int,
    gradient: Tensor,
) -> Tensor:
    """The gradient of each sample weight: its row times its bag's gradient. Max and sequences have none."""
    batch = LookupBatch(values, offsets, None, num_features)
    total = torch.zeros(len(values), device=values.device)
    for lookup in descriptors_of(descriptors):
        if POOLINGS[lookup.pooling] not in ("sum", "mean"):
            continue
        bags = bags_of(lookup, batch)
        columns = gradient[:, lookup.column : lookup.column + lookup.dim].float()
        spread = value_gradients(
            weights[lookup.table], bags.values, bags.offsets, POOLINGS[lookup.pooling], columns
        )
        positions = bags.begin + bags.kept.nonzero().flatten()
        total[positions] += (weights[lookup.table][bags.values].float() * spread).sum(dim=1)
    return total


def bags_of(lookup: LookupDescriptor, batch: LookupBatch) -> LookupBags:
    """The bags that a lookup reads of a batch."""
    bounds = batch.offsets[lookup.feature * batch.size : (lookup.feature + 1) * batch.size + 1]
    begin, end = int(bounds[0]), int(bounds[-1])
    own_weights = None if batch.sample_weights is None else batch.sample_weights[begin:end]
    return LookupBags(
        *without_padding(batch.values[begin:end], bounds - begin, own_weights, lookup.padding), begin
    )
