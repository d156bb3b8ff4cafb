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


class LiveColumns(NamedTuple):
    """Live columns of a table, for each of its rows."""

    whole: float | None
    """Of the rows that this process has, now; None where not all of them are whole."""
    ranked: float
    """Of all processes, as the last ranking found them."""

    def plus(self, other: LiveColumns) -> LiveColumns:
        """With the rows of another part of the table."""
        if self.whole is None or other.whole is None:
            return LiveColumns(None, self.ranked)
        return LiveColumns(self.whole + other.whole, self.ranked)

    @property
    def mean(self) -> float:
        """Now, where that is known."""
        return self.ranked if self.whole is None else self.whole


class AdaptiveFigures(NamedTuple):
    """What adaptive tables of this process are now, as reports show them."""

    budget_bytes: int | None
    """Of the last ranking's step; None: there is no bound yet."""
    bytes: StoreBytes
    dense_bytes: int
    """Of weights and state, if every row were whole."""
    tables: dict[str, LiveColumns]
    """By name, those of which a part is here."""
    counts: AdaptiveCounts
    is_open: bool

    @property
    def mean_dims(self) -> dict[str, float]:
        """By table, live columns for each of its rows; where some are pruned, as the last ranking found
        them."""
        return {name: own.mean for name, own in self.tables.items()}

    def plus(self, other: AdaptiveFigures) -> AdaptiveFigures:
        """With what another rank has."""
        tables = dict(self.tables)
        for name, own in other.tables.items():
            tables[name] = tables[name].plus(own) if name in tables else own
        return self._replace(bytes=self.bytes.plus(other.bytes), tables=tables)
