"""Settings of a ranking of chunks, and exact means of numbers that were summed by exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
"""How many numbers there are, then the sum of their mantissas for each of 256 exponents."""


@dataclass(frozen=True)
class RankingSettings:
    """How chunks are scored; `ranking.py` says how these are used."""

    floor: float = 0.5
    columns: float = 4.0
    power: float = 1.5
    hysteresis: float = 1.2

    def __post_init__(self) -> None:
        for name in ("floor", "columns", "hysteresis"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"ranking.{name} is {getattr(self, name)}; use a number above 0.")
        if not 0 <= self.power <= 16:
            raise ConfigError(f"ranking.power is {self.power}; use a number from 0 to 16.")

    def numbers(self) -> npt.NDArray[np.float32]:
        """float32 [2] as csrc/chunks/ranking.h has them."""
        return np.array([self.floor, self.hysteresis], dtype=np.float32)

    def factors(self, chunks: int, width: int) -> npt.NDArray[np.float32]:
        """float32 [chunks]: what scores are divided by, by the chunk's position; they do not fall."""
        factors = [(1 + chunk * width / self.columns) ** self.power for chunk in range(chunks)]
        if max(factors) > 1e30:
            raise ConfigError(f"ranking.columns is {self.columns}; use more, scores of later chunks vanish.")
        return np.array(factors, dtype=np.float32)


def fade_sixteenths(fades: Sequence[float] | None, tables: int) -> list[int]:
    """Powers of magnitudes, 0 to 1, as whole sixteenths; all 1 if none are given."""
    if fades is None:
        return [16] * tables
    if len(fades) != tables or not all(0 <= fade <= 1 for fade in fades):
        raise ValueError("fades are a number from 0 to 1 for each table")
    return [int(16 * fade) for fade in fades]


def ranking_means(total: Tensor) -> Tensor:
    """float32 [tables]: means of numbers that were summed by exponent, int64 [tables, 257].

    A table without numbers, or all of whose numbers are 0, has the mean of all tables, or else 1.
    """
    everything = exact_mean(total.sum(dim=0).tolist()) or 1.0
    means = [exact_mean(numbers) or everything for numbers in total.tolist()]
    return torch.tensor(means, dtype=torch.float32)


def exact_mean(numbers: list[int]) -> float:
    """The mean, as the nearest float32, of numbers that were summed by exponent; 0 for none."""
    count, *mantissas = numbers
    if count == 0:
        return 0.0
    total = sum(mantissa << max(exponent - 1, 0) for exponent, mantissa in enumerate(mantissas))
    return float(np.float32(float(Fraction(total, count << 149))))
