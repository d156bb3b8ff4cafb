"""Batches whose ids follow a power law, the same for every candidate of `megalith bench tiers`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

SKEWS = {"criteo": 0.92, "middle": 0.6, "gowalla": 0.127}
"""The share of accesses that the most frequent 1% of the rows take (BagPipe for Criteo; Gowalla's items)."""


@dataclass(frozen=True, slots=True)
class TierStream:
    """Tables and batches of a bench; `rows` of each table are touched, `declared` there are."""

    features: int
    rows: int
    declared: int
    dim: int
    batch: int
    top_share: float = SKEWS["criteo"]
    """What the most frequent 1% of the rows take."""

    @property
    def row_bytes(self) -> int:
        """Of a row with the state of row-wise AdaGrad."""
        return self.dim * 4 + 4

    @property
    def touched_bytes(self) -> int:
        """Of all rows that are ever trained."""
        return self.features * self.rows * self.row_bytes

    @property
    def offsets(self) -> Tensor:
        """One id a feature and sample."""
        return torch.arange(self.features * self.batch + 1)

    def exponent(self) -> float:
        """Of the power law that gives `top_share`, by bisection."""
        low, high = 0.01, 3.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._share(middle) < self.top_share else (low, middle)
        return low

    def values(self, number: int) -> Tensor:
        """Dense ids of a batch, int64 [features * batch], feature by feature."""
        drawn = torch.rand(
            self.features * self.batch,
            generator=torch.Generator().manual_seed(1_000 + number),
            dtype=torch.float64,
        )
        power = 1.0 - self.exponent()
        ranks = (1 - drawn * (1 - (self.rows + 1.0) ** power)) ** (1 / power)
        return self.spread((ranks.long() - 1).clamp_(0, self.rows - 1))

    def fill(self, number: int) -> Tensor | None:
        """Batches that touch every row once, in the order of ids, or None behind the last."""
        first = number * self.batch
        if first >= self.rows:
            return None
        ids = torch.arange(first, first + self.batch).clamp_(max=self.rows - 1)
        return ids.repeat(self.features)

    def spread(self, ranks: Tensor) -> Tensor:
        """Frequent rows lie apart: a step that has no factor in common with the number of rows."""
        step = next(
            s for s in range(max(1, int(self.rows * 0.618)), 2 * self.rows + 2) if _coprime(s, self.rows)
        )
        return (ranks * step) % self.rows

    def declared_ids(self, dense: Tensor) -> Tensor:
        """The same ids, spread over all rows that were declared."""
        return dense * (self.declared // self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As result files and workers hold it."""
        return asdict(self)

    def _share(self, exponent: float) -> float:
        power = 1.0 - exponent if abs(1.0 - exponent) > 1e-9 else 1e-9
        return ((1 + self.rows / 100) ** power - 1) / ((1.0 + self.rows) ** power - 1)


def _coprime(one: int, other: int) -> bool:
    while other:
        one, other = other, one % other
    return one == 1
