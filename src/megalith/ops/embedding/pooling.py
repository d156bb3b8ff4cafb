"""Pooling of embedding rows and its gradient in plain torch, one (table, feature) at a time.

Rows are read as stored and added in float32, in the order of the values.
"""

from __future__ import annotations

import torch
from torch import Tensor


def bag_of_value(offsets: Tensor) -> Tensor:
    """The bag each value belongs to: offsets [0, 2, 2, 3] -> [0, 0, 2]."""
    lengths = torch.diff(offsets)
    return torch.repeat_interleave(torch.arange(len(lengths), device=offsets.device), lengths)


def without_padding(
    values: Tensor, offsets: Tensor, sample_weights: Tensor | None, padding: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The same bags without the values equal to `padding`, and which values stayed."""
    kept = values != padding
    counts = torch.zeros(len(offsets) - 1, dtype=torch.int64, device=values.device)
    counts.index_add_(0, bag_of_value(offsets), kept.long())
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return values[kept], bounds, None if sample_weights is None else sample_weights[kept], kept


def pooled_lookup(
    weight: Tensor, values: Tensor, offsets: Tensor, pooling: str, sample_weights: Tensor | None = None
) -> Tensor:
    """Each bag's rows, summed, averaged or maximised; float32 [bags, dim]. An empty bag gives zeros."""
    rows = weight[values].float()
    if pooling == "max":
        best = torch.segment_reduce(rows, "max", offsets=offsets, axis=0, initial=-torch.inf, unsafe=True)
        return best.masked_fill((torch.diff(offsets) == 0).unsqueeze(1), 0.0)
    if sample_weights is not None:
        rows = rows * sample_weights.unsqueeze(1)
    total = torch.segment_reduce(rows, "sum", offsets=offsets, axis=0, initial=0, unsafe=True)
    if pooling == "mean":
        total = total / torch.diff(offsets).clamp(min=1).unsqueeze(1)
    return total


def value_gradients(
    weight: Tensor,
    values: Tensor,
    offsets: Tensor,
    pooling: str,
    output_gradient: Tensor,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """The gradient of every looked-up value; float32 [values, dim].

    With max pooling a bag's gradient goes, column by column, to the first value that holds the maximum.
    """
    bags = bag_of_value(offsets)
    spread = output_gradient[bags]
    if pooling == "max":
        rows = weight[values].float()
        best = pooled_lookup(weight, values, offsets, "max")
        position = torch.arange(len(values), device=values.device).unsqueeze(1).expand_as(rows)
        candidates = torch.where(rows == best[bags], position, len(values))
        first = torch.full_like(best, len(values), dtype=torch.int64)
        first.scatter_reduce_(0, bags.unsqueeze(1).expand_as(rows), candidates, "amin")
        return torch.where(first[bags] == position, spread, 0.0)
    if pooling == "mean":
        spread = spread / torch.diff(offsets)[bags].unsqueeze(1)
    return spread if sample_weights is None else spread * sample_weights.unsqueeze(1)
