"""The shape of a row cache, and what a model of it says: misses by step of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megalith.cost.row_cache.frequencies import Floats

WAYS = 16
"""Slots of a set."""
REACH = 32
"""Batches that look-ahead tells apart; of a longer window, as many groups of batches."""
POLICIES = ("lru", "lfu", "lookahead")


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """A cache of rows of one shape, shared by all tables of that shape: `ops.stores.tiered_rows`."""

    capacity: int
    """Rows in memory."""
    policy: str = "lru"
    window: int = 0
    """Batches that look-ahead knows beyond the one it resolves."""
    in_flight: int = 1
    """Batches resolved and not released: their rows cannot leave."""
    overflow: int | None = None
    """Slots for rows whose set is full of such rows; a 16th of all if left out."""

    @classmethod
    def of_bytes(
        cls, cache_bytes: int, row_bytes: int, policy: str = "lru", window: int = 0
    ) -> CacheGeometry:
        """The cache whose rows, with their optimizer state, take so many bytes."""
        return cls(max(1, cache_bytes // row_bytes), policy, window)

    @property
    def sets(self) -> int:
        """Sets of 16 slots."""
        spare = self.capacity // 16 if self.overflow is None else self.overflow
        return max(1, (self.capacity - spare) // WAYS)

    @property
    def group_bits(self) -> int:
        """The logarithm of how many batches look-ahead does not tell apart."""
        return ((self.window - 1) // REACH).bit_length() if self.window else 0


@dataclass(frozen=True, slots=True, eq=False)
class MissCurve:
    """Misses at steps of a run that begins with an empty cache; between these steps they are interpolated,
    and behind the last they stay as they are."""

    steps: Floats
    misses: Floats
    """Rows that a batch wants and memory does not hold, at each of the steps."""
    cached_rows: Floats
    """Rows in the cache after each of the steps."""

    def sum_to(self, step: float) -> float:
        """Misses of the first `step` steps together."""
        inside = self.steps[self.steps < step]
        ends = np.concatenate(([0.0], inside, [step]))
        # Step n reaches from n - 1 to n; its middle is n - 1/2.
        middle = (ends[:-1] + ends[1:]) / 2 + 0.5
        return float(np.diff(ends) @ np.interp(middle, self.steps, self.misses))

    def cached_at(self, step: float) -> float:
        """Rows in the cache after so many steps."""
        return float(np.interp(step, np.append(0.0, self.steps), np.append(0.0, self.cached_rows)))
