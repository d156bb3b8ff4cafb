"""What the tiers of a run's tables did since the last report: hits, reads, bytes; over all ranks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.embeddings.stores.base import StoreBytes, TierCounts
from megalith.train.learner.lookup_model import Tables


class TierMetrics:
    """Takes the counts of all ranks at every report; of no effect where every table is whole in memory."""

    def __init__(self, tables: Tables, ranks: Ranks, *, is_tiered: bool) -> None:
        self._tables, self._ranks, self._is_tiered = tables, ranks, is_tiered
        self._last = TierCounts()

    def take(self, samples: int) -> dict[str, Any] | None:
        """The entry for `samples` samples since the last call; all ranks call it together."""
        if not self._is_tiered:
            return None
        found = self._ranks.from_each(lambda: (tuple(self._tables.counts()), asdict(self._tables.bytes())))
        counts, taken = TierCounts(), StoreBytes()
        for own_counts, own_bytes in found:
            counts, taken = counts.plus(TierCounts(*own_counts)), taken.plus(StoreBytes(**own_bytes))
        past, self._last = self._last, counts
        now = TierCounts(*(total - before for total, before in zip(counts, past, strict=True)))
        return {
            "hit_rate": round(now.hits / now.lookups, 6) if now.lookups else None,
            "reads_per_sample": round(now.reads / samples, 4) if samples else None,
            "reads": now.reads,
            "new_rows": now.new_rows,
            "written_rows": now.written_rows,
            "read_bytes": now.read_bytes,
            "written_bytes": now.written_bytes,
            "memory_bytes": taken.weights + taken.state,
            "index_bytes": taken.index + taken.bookkeeping,
            "disk_bytes": taken.disk,
        }
