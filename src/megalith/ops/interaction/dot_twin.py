"""The plain-torch truth of the dot interaction."""

from __future__ import annotations

import torch
from torch import Tensor


def dot_interaction_twin(first: Tensor | None, rest: Tensor, dim: int) -> Tensor:
    """The plain-torch truth of `dot_interaction`, which autograd differentiates."""
    joined = rest if first is None else torch.cat([first, rest], dim=1)
    vectors = joined.float().view(len(joined), joined.shape[1] // dim, dim)
    rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
    return products if first is None else torch.cat([first.float(), products], dim=1)
