"""What adaptive tables are and what rankings of their chunks did, as reports show it."""

from __future__ import annotations

from typing import NamedTuple

from megalith.embeddings.stores.base import StoreBytes
from megalith.ops.chunks.ranking import RankingChanges


class AdaptiveCounts(NamedTuple):
    """What rankings did so far, and what the last one found."""

    pruned: int = 0
    """Chunks, as `grown`."""
    grown: int = 0
    rankings: int = 0
    applied: int = 0
    """Rankings that changed something."""

    def after(self, changes: RankingChanges | None) -> AdaptiveCounts:
        """With one more ranking, and what it changed if it did."""
        if changes is None:
            return self._replace(rankings=self.rankings + 1)
        pruned, grown = self.pruned + changes.pruned, self.grown + changes.grown
        return AdaptiveCounts(pruned, grown, self.rankings + 1, self.applied + 1)


class AdaptiveFigures(NamedTuple):
    """What adaptive tables of this process are now, as reports show them."""

    budget_bytes: int | None
    """Of the last ranking's step; None: there is no bound yet."""
    bytes: StoreBytes
    dense_bytes: int
    """Of weights and state, if every row were whole."""
    mean_dims: dict[str, float]
    """By table, live columns for each of its rows; as the last ranking found them."""
    counts: AdaptiveCounts
    is_open: bool
