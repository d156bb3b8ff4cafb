"""What adaptive tables are at each report: bytes by part, live columns of each table, what changed."""

from __future__ import annotations

from dataclasses import asdict
from functools import reduce
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.embeddings.stores.adaptive.figures import AdaptiveCounts, AdaptiveFigures
from megalith.hardware.free_memory import resident_bytes
from megalith.train.learner.lookup_model import Tables

PARTS = ("weights", "state", "utility", "index", "sketch", "free", "bookkeeping")
"""Of the bytes of adaptive tables, as entries name them with `_bytes` behind."""


class AdaptiveMetrics:
    """Takes the figures of all ranks' adaptive tables at every report; of no effect where there are none."""

    def __init__(self, tables: Tables, ranks: Ranks) -> None:
        self._tables, self._ranks = tables, ranks
        self._last = AdaptiveCounts()

    def take(self) -> dict[str, Any] | None:
        """The entry since the last call; all ranks call it together."""
        own = self._tables.adaptive()
        if own is None:
            return None
        found = self._ranks.from_each(lambda: (own, resident_bytes()))
        figures = reduce(AdaptiveFigures.plus, [figures for figures, _ in found])
        resident = [taken for _, taken in found if taken is not None]
        past, self._last = self._last, figures.counts
        parts = asdict(figures.bytes)
        return {
            "budget_bytes": figures.budget_bytes,
            "total_bytes": figures.bytes.memory,
            "dense_bytes": figures.dense_bytes,
            **{f"{part}_bytes": parts[part] for part in PARTS},
            "resident_bytes": sum(resident) if resident else None,
            "open": figures.is_open,
            "pruned": figures.counts.pruned - past.pruned,
            "grown": figures.counts.grown - past.grown,
            "mean_dims": {name: round(dim, 4) for name, dim in figures.mean_dims.items()},
        }


def adaptive_totals(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The state at the end of a run and all that was pruned and grown, from the lines of metrics.jsonl."""
    found = [entry["adaptive"] for entry in entries if entry.get("adaptive")]
    if not found:
        return None
    last = found[-1]
    return {
        **last,
        "ratio": round(last["dense_bytes"] / last["total_bytes"], 3),
        "pruned": sum(entry["pruned"] for entry in found),
        "grown": sum(entry["grown"] for entry in found),
    }
