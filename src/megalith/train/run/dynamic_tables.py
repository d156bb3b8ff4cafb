"""What the dynamic tables of a run did since the last report, and the log of ids that lost their row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megalith.core.files import append
from megalith.embeddings.collection import EmbeddingCollection
from megalith.embeddings.stores.dynamic.counts import DynamicCounts
from megalith.ops.ids.changes import LEAVING_REASONS, EvictedIds
from megalith.train.learner.lookup_model import Tables


class DynamicMetrics:
    """Takes the counts at every report; of no effect where no table is dynamic."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._last = tables, DynamicCounts()
        self._last_of_each: dict[str, DynamicCounts] = {}

    def take(self) -> dict[str, Any] | None:
        """The entry since the last call."""
        counts = self._tables.dynamic_counts()
        if counts is None:
            return None
        now, self._last = counts.since(self._last), counts
        share = now.unknown_share
        entry = {**now._asdict(), "unknown_share": None if share is None else round(share, 6)}
        if isinstance(self._tables, EmbeddingCollection):
            entry["tables"] = self._of_each(self._tables.dynamic_counts_by_table())
        return entry

    def _of_each(self, counts: dict[str, DynamicCounts]) -> dict[str, dict[str, int]]:
        """By table what is of now, and what was counted since the last call; counts of 0 are left out."""
        before, self._last_of_each = self._last_of_each, counts
        since = {name: own.since(before.get(name, DynamicCounts())) for name, own in counts.items()}
        always = "ids", "bound", "lookups"
        return {
            name: {key: count for key, count in own._asdict().items() if count or key in always}
            for name, own in since.items()
        }


class EvictedLog:
    """`evicted.jsonl`: of each step and table the ids that lost their row, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, tables: list[str], evicted: EvictedIds) -> None:
        """Appends a line for each table; `tables` are their names."""
        for number in evicted.tables.unique().tolist():
            own = evicted.tables == number
            reasons = [LEAVING_REASONS[reason] for reason in evicted.reasons[own].tolist()]
            line = {
                "step": step,
                "table": tables[number],
                "ids": evicted.ids[own].tolist(),
                "reasons": reasons,
            }
            append(self.path, json.dumps(line).encode() + b"\n")
