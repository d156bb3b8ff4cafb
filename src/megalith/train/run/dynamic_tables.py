"""What the dynamic tables of a run did since the last report, and the log of ids that lost their row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from megalith.core.files import append, read_jsonl, write_atomic
from megalith.embeddings.stores.dynamic.counts import DynamicCounts
from megalith.ops.ids.changes import LEAVING_REASONS, EvictedIds
from megalith.train.learner.lookup_model import Tables


class DynamicMetrics:
    """Takes the counts at every report; of no effect where no table is dynamic."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._last = tables, DynamicCounts()

    def take(self) -> dict[str, Any] | None:
        """The entry since the last call."""
        counts = self._tables.dynamic_counts()
        if counts is None:
            return None
        now, self._last = counts.since(self._last), counts
        share = now.unknown_share
        return {**now._asdict(), "unknown_share": None if share is None else round(share, 6)}


class EvictedLog:
    """`evicted.jsonl`: of each step and table the ids that lost their row, and why."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def drop_after(self, last_step: int) -> None:
        """Drops what was written after a step, and half a line; a resumed run writes it again."""
        if not self.path.exists():
            return
        kept = "".join(json.dumps(line) + "\n" for line in read_jsonl(self.path) if line["step"] <= last_step)
        write_atomic(self.path, kept)

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
