"""Means over rows that lie on several workers: parts arrive as sums, the sample's rank divides them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.pooling import without_padding
from megalith.sharding.layout.types import MeanOutput
from megalith.sharding.runtime.routing import Bags


def shares(mean_outputs: Sequence[MeanOutput], bags: Bags) -> list[Tensor]:
    """One over the number of ids of each bag, [batch, 1], for each of the means."""
    found: dict[tuple[int, int | None], Tensor] = {}
    for feature, padding, _, _ in mean_outputs:
        if (feature, padding) not in found:
            edges = bags.offsets[feature * bags.batch : (feature + 1) * bags.batch + 1]
            if padding is not None:
                values = bags.values[int(edges[0]) : int(edges[-1])]
                edges = without_padding(values, edges - edges[0], None, padding)[1]
            found[feature, padding] = torch.diff(edges).clamp_(min=1).reciprocal().unsqueeze(1)
    return [found[one.feature, one.padding] for one in mean_outputs]


def scale_(rows: Tensor, mean_outputs: Sequence[MeanOutput], by: Sequence[Tensor]) -> None:
    """Scales the columns of the means, in place."""
    for one, share in zip(mean_outputs, by, strict=True):
        rows[:, one.output : one.output + one.width] *= share
