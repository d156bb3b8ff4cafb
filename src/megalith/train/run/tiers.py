"""What the tiers of a run's tables did, over all ranks: since the last report, and in the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
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
            "lookups": now.lookups,
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


def tier_totals(entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Hits, reads and step time of all training, and bytes at its end, from the lines of metrics.jsonl.

    None where every table is whole in memory. The time of a step is a median over reports: it leaves out
    evaluations and checkpoints.
    """
    lookups = hits = reads = written = samples = 0
    step_seconds, before, step, last = [], 0, 0, None
    for entry in entries:
        if entry.get("kind") != "train":
            continue
        passed, steps = entry["samples"] - before, entry["step"] - step
        before, step = entry["samples"], entry["step"]
        tiers = entry.get("tiers")
        if tiers is None:
            continue
        last = tiers
        lookups += tiers["lookups"]
        hits += round((tiers["hit_rate"] or 0.0) * tiers["lookups"])
        reads, written, samples = reads + tiers["reads"], written + tiers["written_rows"], samples + passed
        if steps > 0:
            step_seconds.append(entry["seconds"] / steps)
    if last is None:
        return None
    return {
        "hit_rate": round(hits / lookups, 6) if lookups else None,
        "reads_per_sample": round(reads / samples, 4) if samples else None,
        "written_rows_per_sample": round(written / samples, 4) if samples else None,
        "step_seconds": round(median(step_seconds), 6) if step_seconds else None,
        **{key: last[key] for key in ("memory_bytes", "index_bytes", "disk_bytes")},
    }
