"""What dynamic tables did: which ids came, which left and why, and lookups that found no row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from megalith.ops.ids.changes import IdStatistics


class DynamicCounts(NamedTuple):
    """Counts of training since the tables were made, all tables together; the first three are of now."""

    ids: int = 0
    bound: int = 0
    map_bytes: int = 0
    lookups: int = 0
    hits: int = 0
    """Lookups whose id had a row before the batch."""
    admitted: int = 0
    """Ids that got a row."""
    refused: int = 0
    """Lookups without a row, by the rule of admission."""
    full: int = 0
    """Lookups without a row, because their batch used every row that could leave."""
    evicted: int = 0
    """Ids that lost their row to another."""
    shrunk: int = 0
    expired_by_batches: int = 0
    expired_by_seconds: int = 0
    expired_by_score: int = 0

    def plus(self, other: DynamicCounts) -> DynamicCounts:
        """Both together."""
        return DynamicCounts(*(one + more for one, more in zip(self, other, strict=True)))

    def since(self, before: DynamicCounts) -> DynamicCounts:
        """What was counted after another count; what is of now stays."""
        changed = (now - then for now, then in zip(self[_NOW:], before[_NOW:], strict=True))
        return DynamicCounts(*self[:_NOW], *changed)

    @property
    def unknown_share(self) -> float | None:
        """Of the lookups, those that found no row."""
        return (self.refused + self.full) / self.lookups if self.lookups else None

    @staticmethod
    def of(found: IdStatistics, map_bytes: int) -> DynamicCounts:
        """The counts of one table."""
        return DynamicCounts(
            *(found.ids, found.bound, map_bytes),
            *(found.lookups, found.hits, found.admitted, found.refused, found.full),
            *(found.evicted, found.shrunk),
            *(found.expired_by_batches, found.expired_by_seconds, found.expired_by_score),
        )


_NOW = 3


def added_by_table(parts: Iterable[tuple[str, DynamicCounts]]) -> dict[str, DynamicCounts]:
    """Counts by table, of which there may be several parts."""
    counts: dict[str, DynamicCounts] = {}
    for name, own in parts:
        counts[name] = counts[name].plus(own) if name in counts else own
    return counts
