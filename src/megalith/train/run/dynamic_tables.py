"""What the dynamic tables of a run did since the last report, and the log of ids that lost their row."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from megalith.comm.ranks import Ranks
from megalith.core.files import append
from megalith.embeddings.stores.dynamic.counts import DynamicCounts, added_by_table
from megalith.ops.ids.changes import LEAVING_REASONS, EvictedIds
from megalith.ops.ids.partitions import id_partitions
from megalith.train.learner.lookup_model import Tables


class DynamicMetrics:
    """Takes the counts of all ranks at every report; of no effect where no table is dynamic."""

    def __init__(self, tables: Tables, ranks: Ranks) -> None:
        self._tables, self._ranks, self._last = tables, ranks, DynamicCounts()
        self._last_of_each: dict[str, DynamicCounts] = {}

    def take(self) -> dict[str, Any] | None:
        """The entry since the last call; all ranks call it together."""
        own = self._tables.dynamic_counts()
        if own is None:
            return None
        counts = reduce(DynamicCounts.plus, self._ranks.from_each(lambda: own))
        now, self._last = counts.since(self._last), counts
        share = now.unknown_share
        entry = {**now._asdict(), "unknown_share": None if share is None else round(share, 6)}
        of_ranks = self._ranks.from_each(self._tables.dynamic_counts_by_table)
        of_each = added_by_table(part for of_rank in of_ranks for part in of_rank.items())
        entry["tables"] = self._of_each(of_each)
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
    """`evicted.jsonl`: of each step and table the ids that lost their row, and why.

    Ranks keep what they lost until all `flush` together; the first one writes.
    """

    def __init__(self, path: Path, ranks: Ranks | None = None) -> None:
        self.path, self._ranks = path, ranks or Ranks()
        self._kept: list[dict[str, Any]] = []

    def write(self, step: int, tables: list[str], evicted: EvictedIds) -> None:
        """Takes a line for each table; `tables` are their names."""
        for number in evicted.tables.unique().tolist():
            own = evicted.tables == number
            reasons = [LEAVING_REASONS[reason] for reason in evicted.reasons[own].tolist()]
            line = {
                "step": step,
                "table": tables[number],
                "ids": evicted.ids[own].tolist(),
                "reasons": reasons,
            }
            self._kept.append(line)
        if self._ranks.world_size == 1:
            self.flush()

    def flush(self) -> None:
        """Writes what ranks have kept: before every checkpoint, so that a resumed run lacks no line."""
        lines, self._kept = self._kept, []
        if self._ranks.world_size > 1:
            lines = _merged([line for of_rank in self._ranks.from_each(lambda: lines) for line in of_rank])
        if lines and self._ranks.is_first:
            append(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _merged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each step and table, of those of all ranks; ids in the order of their partitions."""
    by_table: dict[tuple[int, str], list[tuple[int, int, str]]] = {}
    for line in lines:
        partitions = id_partitions(torch.tensor(line["ids"])).tolist()
        found = by_table.setdefault((line["step"], line["table"]), [])
        found += zip(partitions, line["ids"], line["reasons"], strict=True)
    return [
        {
            "step": step,
            "table": table,
            "ids": [one for _, one, _ in found],
            "reasons": [reason for *_, reason in found],
        }
        for (step, table), found in sorted(by_table.items(), key=lambda item: item[0])
        for found in [sorted(found, key=lambda one: one[0])]
    ]
