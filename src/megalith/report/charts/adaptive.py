"""Charts of adaptive tables: live columns of each table, and bytes by part, over the samples trained on."""

from __future__ import annotations

from megalith.core.units import format_bytes
from megalith.report.charts.axes import byte_axis, samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart, Figure

_HEIGHT, _MAX_TABLES = 360, 12
_PARTS = ("weights", "state", "utility", "index", "sketch", "free", "bookkeeping")
_COLOURS = ("--train", "--eval", "--best", "#8a6fb0", "#5c9ead", "#b08f6f", "#999999")
Points = list[tuple[float, float]]


def live_dims_chart(facts: RunFacts) -> Chart | None:
    """Mean live columns of a row, by table: those that changed most."""
    by_table: dict[str, Points] = {}
    for entry in facts.training:
        for table, dim in (entry.get("adaptive") or {}).get("mean_dims", {}).items():
            by_table.setdefault(table, []).append((entry["samples"], dim))
    if not by_table:
        return None

    def range_of(table: str) -> float:
        dims = [dim for _, dim in by_table[table]]
        return max(dims) - min(dims)

    shown = sorted(by_table, key=lambda table: (-range_of(table), table))[:_MAX_TABLES]
    data = []
    for number, table in enumerate(sorted(shown)):
        trace = _line(table, by_table[table], _COLOURS[number % len(_COLOURS)], "%{y:.2f}")
        if number >= len(_COLOURS):
            trace["line"] = {**trace["line"], "dash": "dot"}
        data.append(trace)
    caption = "Live columns for each row of a table, rows without any included, as rankings found them."
    if len(by_table) > len(shown):
        caption += f" The {len(shown)} of {len(by_table)} tables that moved most."
    layout = _layout(facts, "columns a row")
    return Chart("live-dims", "Live dims by table", caption, {"data": data, "layout": layout}, _HEIGHT)


def adaptive_bytes_chart(facts: RunFacts) -> Chart | None:
    """Bytes by part, one on the other, with the budget and the memory of the process."""
    entries = [(entry["samples"], entry["adaptive"]) for entry in facts.training if entry.get("adaptive")]
    if not entries:
        return None
    data = []
    for part, colour in zip(_PARTS, _COLOURS, strict=True):
        points = [(samples, own[f"{part}_bytes"]) for samples, own in entries]
        trace = _line(part, points, colour, "%{customdata}")
        trace |= {"stackgroup": "bytes", "customdata": [format_bytes(value) for value in trace["y"]]}
        data.append(trace)
    budget = [(samples, own["budget_bytes"]) for samples, own in entries if own.get("budget_bytes")]
    if budget:
        trace = _line("budget", budget, "--eval", "%{customdata}")
        trace["line"] = {"color": "--eval", "width": 2, "dash": "dot"}
        trace["customdata"] = [format_bytes(value) for value in trace["y"]]
        data.append(trace)
    high = max(sum(own[f"{part}_bytes"] for part in _PARTS) for _, own in entries)
    layout = _layout(facts, "bytes")
    layout["yaxis"] = byte_axis(max(high, budget[-1][1] if budget else 0), "bytes")
    last = entries[-1][1]
    resident = last.get("resident_bytes")
    caption = (
        f"All that adaptive tables take; as dense ones they would take {format_bytes(last['dense_bytes'])}."
    )
    if resident:
        caption += f" The process had {format_bytes(resident)} of memory at the end."
    return Chart("adaptive-bytes", "Bytes by part", caption, {"data": data, "layout": layout}, _HEIGHT)


def _line(name: str, points: Points, colour: str, shown: str) -> Figure:
    trace = line(name, thin(points), colour, markers=len(points) < 3)
    return {**trace, "hovertemplate": f"{shown}<extra>{name}</extra>"}


def _layout(facts: RunFacts, axis: str) -> Figure:
    return {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": {"title": {"text": axis}, "rangemode": "tozero"},
    }
