"""Pairwise interactions of the vectors of one sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DotInteraction(nn.Module):
    """Dot products of all pairs of `num_vectors` vectors: [batch, n, dim] -> [batch, n (n - 1) / 2]."""

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer("flat", rows * num_vectors + columns, persistent=False)
        self.flat: Tensor

    @property
    def output_dim(self) -> int:
        return len(self.flat)

    def forward(self, vectors: Tensor) -> Tensor:
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return products.flatten(1).index_select(1, self.flat)


def factorization_term(vectors: Tensor) -> Tensor:
    """The sum of all pairwise dot products, in linear time: [batch, n, dim] -> [batch]."""
    total = vectors.sum(dim=1)
    return 0.5 * (total.square() - vectors.square().sum(dim=1)).sum(dim=1)
