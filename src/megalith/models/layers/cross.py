"""Cross layers of DCN-v2 (arXiv 2008.13535): x_{l+1} = x_0 * (W x_l + b) + x_l, W full or of low rank."""

from __future__ import annotations

from torch import Tensor, nn


class CrossNetwork(nn.Module):
    """`num_layers` crosses over `dim` columns; `rank` None keeps W full, else W = U V of that rank."""

    def __init__(self, dim: int, num_layers: int, rank: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_mixing(dim, rank) for _ in range(num_layers))

    def forward(self, start: Tensor) -> Tensor:
        """The columns after all crosses, [batch, dim]."""
        crossed = start
        for layer in self.layers:
            crossed = start * layer(crossed) + crossed
        return crossed


def _mixing(dim: int, rank: int | None) -> nn.Module:
    if rank is None or rank >= dim:
        return nn.Linear(dim, dim)
    return nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim))
