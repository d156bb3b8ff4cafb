"""Quality against bytes: a line for each method of `megalith bench adaptive`, dense tables as a level."""

from __future__ import annotations

from typing import Any

from megalith.core.units import format_bytes
from megalith.report.charts.axes import byte_log_axis
from megalith.report.charts.quality import metric_axis
from megalith.report.shell import Chart, Figure

_COLOURS = ("#c4553b", "#3b6fc4", "#3d9a63", "#8a6fb0", "#5c9ead", "#b08f6f", "#b0567f", "#7a8b3a", "#777777")
_NAMES = {"log_loss": "log loss", "auc": "AUC"}


def quality_bytes_chart(results: dict[str, Any]) -> Chart:
    """Means over seeds with two standard errors, at all bytes that each method takes."""
    rows = [row for row in results["rows"] if row["mean"] is not None]
    metric = _NAMES.get(results["metric"], results["metric"])
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "none"))
    data: list[Figure] = []
    for number, method in enumerate(methods):
        own = sorted((row for row in rows if row["method"] == method), key=lambda row: row["bytes"])
        data.append(_line(method, own, _COLOURS[number % len(_COLOURS)], is_ours=method == "adaptive"))
    dense = next((row for row in rows if row["method"] == "none"), None)
    sizes = [row["bytes"] for row in rows]
    if dense is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "none (dense)",
                "x": [min(sizes), max(sizes)],
                "y": [dense["mean"], dense["mean"]],
                "line": {"color": "--best", "width": 2, "dash": "dot"},
                "hovertemplate": f"%{{y:.5f}}, {format_bytes(round(dense['bytes']))}<extra>dense</extra>",
            }
        )
    layout: Figure = {"hovermode": "closest", "yaxis": metric_axis(metric)}
    layout["xaxis"] = byte_log_axis(sizes, "all bytes") if sizes else {}
    caption = (
        f"Mean {metric} over seeds, at all bytes that a method takes: weights, optimizer state, index and "
        "bookkeeping. Whiskers are two standard errors."
    )
    missing = sorted(
        {f"{row['method']} at {row['ratio']:g}x" for row in results["rows"] if "infeasible" in row}
    )
    if missing:
        caption += f" Infeasible: {', '.join(missing)}."
    return Chart("quality-bytes", "Quality against bytes", caption, {"data": data, "layout": layout}, 520)


def _line(method: str, rows: list[dict[str, Any]], colour: str, is_ours: bool) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": method,
        "x": [row["bytes"] for row in rows],
        "y": [row["mean"] for row in rows],
        "error_y": {
            "type": "data",
            "array": [2 * (row["standard_error"] or 0.0) for row in rows],
            "color": colour,
            "thickness": 1.2,
            "width": 3,
        },
        "line": {"color": colour, "width": 3.4 if is_ours else 1.6},
        "marker": {"color": colour, "size": 9 if is_ours else 6},
        "customdata": [[format_bytes(round(row["bytes"])), f"{row['true_ratio']:.1f}"] for row in rows],
        "hovertemplate": f"%{{y:.5f}}, %{{customdata[0]}}, %{{customdata[1]}}x<extra>{method}</extra>",
    }
