"""Settings of a ranking of chunks, and exact means of numbers that were summed by exponent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megalith.core.errors import ConfigError

KEY_BITS = 48
"""Of a chunk's key: 32 of its score and 16 of a hash."""
SUM_NUMBERS = 257
"""How many numbers were summed, then the sum of their mantissas for each of 256 exponents."""


@dataclass(frozen=True)
class RankingSettings:
    """How chunks are scored; `ranking.py` says how these are used."""

    floor: float = 0.5
    ceiling: float = math.inf
    dead: float | None = None
    """What a chunk without weights counts as beside `floor` to `ceiling` of live ones; None: the floor."""
    columns: float = 4.0
    power: float = 1.5
    hysteresis: float = 1.2
    new_utility: float = 0.0
    """A chunk begins with so many mean utilities of its table at least."""

    def __post_init__(self) -> None:
        for name in ("floor", "columns", "hysteresis"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"ranking.{name} is {getattr(self, name)}; use a number above 0.")
        if not self.ceiling >= self.floor:
            raise ConfigError(f"ranking.ceiling is {self.ceiling}; use the floor, {self.floor}, or more.")
        if not (0 <= self.power < math.inf and 0 <= self.new_utility < math.inf):
            raise ConfigError("ranking.power and ranking.new_utility are numbers from 0 on.")
        if self.dead is not None and not 0 < self.dead < math.inf:
            raise ConfigError(f"ranking.dead is {self.dead}; use a number above 0, or leave it out.")

    def numbers(self) -> npt.NDArray[np.float32]:
        """float32 [5] as csrc/chunks/ranking.h has them."""
        dead = self.floor if self.dead is None else self.dead
        return np.array([self.floor, self.ceiling, dead, self.hysteresis, self.new_utility], dtype=np.float32)

    def factors(self, chunks: int, width: int) -> npt.NDArray[np.float32]:
        """float32 [chunks]: what scores are divided by, by the chunk's position."""
        return np.array(
            [(1 + chunk * width / self.columns) ** self.power for chunk in range(chunks)], dtype=np.float32
        )


def ranking_means(total: Tensor) -> Tensor:
    """float32 [tables, 2]: means of utilities and norms, from `Ranking.sums` added up.

    A table without live chunks, or all of whose numbers are 0, has the mean of all tables, or else 1.
    """
    sums = total.tolist()
    everything = total.sum(dim=0).tolist()
    fallback = [exact_mean(numbers) or 1.0 for numbers in everything]
    means = [
        [exact_mean(numbers) or other for numbers, other in zip(table, fallback, strict=True)]
        for table in sums
    ]
    return torch.tensor(means, dtype=torch.float32).view(len(sums), 2)


def exact_mean(numbers: list[int]) -> float:
    """The mean, as the nearest float32, of numbers that were summed by exponent; 0 for none."""
    count, *mantissas = numbers
    if count == 0:
        return 0.0
    total = sum(mantissa << max(exponent - 1, 0) for exponent, mantissa in enumerate(mantissas))
    return float(np.float32(float(Fraction(total, count << 149))))
