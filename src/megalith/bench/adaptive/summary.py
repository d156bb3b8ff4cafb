"""Means and standard errors over seeds, method by method and ratio by ratio."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]
OURS = "adaptive"
OVER_BUDGET = 1.03
"""Pools of a few extents are this coarse; beyond it a run is marked."""


def summarise(
    points: Sequence[Mapping[str, Any]], records: Sequence[Record | None], metric: str
) -> list[Any]:
    """A row for each method and ratio; `records` are those of the points, None where one has not run yet."""
    groups: dict[tuple[str, float], list[Record | None]] = {}
    for point, record in zip(points, records, strict=True):
        groups.setdefault((point["method"], point["ratio"]), []).append(record)
    rows = [_row(method, ratio, own, metric) for (method, ratio), own in groups.items()]
    dense = next((row["mean"] for row in rows if row["method"] == "none"), None)
    for row in rows:
        if dense is not None and row["mean"] is not None:
            row["against_dense"] = row["mean"] - dense
        ours = groups.get((OURS, row["ratio"]))
        if ours is not None and row["method"] != OURS:
            row |= _paired(groups[row["method"], row["ratio"]], ours, metric)
    return rows


def _paired(records: Sequence[Record | None], ours: Sequence[Record | None], metric: str) -> Record:
    """How much better adaptive tables are, seed by seed, with the standard error of that; what has both."""
    sign = 1 if metric == "auc" else -1
    gains = [
        sign * (quality(own, metric) - quality(record, metric))
        for record, own in zip(records, ours, strict=True)
        if record is not None and own is not None and "quality" in record and "quality" in own
    ]
    if not gains:
        return {}
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
    return {"adaptive_gain": statistics.fmean(gains), "adaptive_gain_error": error}


def quality(record: Record, metric: str, split: str | None = None) -> float:
    """The metric of a run on a split; without one on `test`, or else on `valid`."""
    found = record["quality"]
    return float(found[split or ("test" if "test" in found else "valid")][metric])


def _row(method: str, ratio: float, records: Sequence[Record | None], metric: str) -> dict[str, Any]:
    done = [record for record in records if record is not None]
    trained = [record for record in done if "quality" in record]
    row: dict[str, Any] = {
        "method": method,
        "ratio": ratio,
        "seeds": len(trained),
        "missing": len(records) - len(done),
        "mean": None,
        "standard_error": None,
        "against_dense": None,
    }
    if not trained:
        causes = [record["infeasible"] for record in done]
        return row | ({"infeasible": causes[0]} if causes else {})
    values = [quality(record, metric) for record in trained]
    row["mean"] = statistics.fmean(values)
    if len(values) > 1:
        row["standard_error"] = statistics.stdev(values) / math.sqrt(len(values))
    total = statistics.fmean(record["bytes"]["total"] for record in trained)
    row["bytes"] = total
    row["weight_bytes"] = statistics.fmean(record["bytes"]["weights"] for record in trained)
    row["true_ratio"] = trained[0]["dense_bytes"] / total
    if "dense_weight_bytes" in trained[0]:
        row["weight_ratio"] = trained[0]["dense_weight_bytes"] / row["weight_bytes"]
    row["over_budget"] = any(
        record["bytes"]["total"] > OVER_BUDGET * record["budget_bytes"] for record in trained
    )
    row["settings"] = trained[0]["settings"]
    return row
