"""All pairwise interactions of the vectors of one sample, summed."""

from __future__ import annotations

from torch import Tensor


def factorization_term(vectors: Tensor) -> Tensor:
    """The sum of all pairwise dot products, in linear time: [batch, n, dim] -> [batch]."""
    total = vectors.sum(dim=1)
    return 0.5 * (total.square() - vectors.square().sum(dim=1)).sum(dim=1)
