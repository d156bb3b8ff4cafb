"""Charts of tables beyond memory: hits of the cache, rows read and written, bytes of each tier."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.units import format_bytes
from megalith.report.charts.axes import byte_log_axis, samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart, Figure

_HEIGHT = 300
Points = list[tuple[float, float]]


def hit_chart(facts: RunFacts) -> Chart | None:
    """The share of lookups whose row was in memory, over the samples trained on."""
    points = _points(facts, "hit_rate")
    if not points:
        return None
    data = [_line("hit rate", points, "--train", "%{y:.1%}")]
    data += _predicted(facts, "hit_rate", points, "%{y:.1%}", "predicted, whole run")
    low = min(value for trace in data for value in trace["y"])
    layout = _layout(facts, "lookups")
    # 99% is far from 98%: where all values are high the axis does not begin at 0.
    low = max(0.0, low - 0.1 * (1.0 - low) - 0.01)
    layout["yaxis"] |= {"tickformat": ".3~p", "range": [low, 1.0 + 0.04 * (1.0 - low)]}
    caption = "Lookups whose row was in memory when its batch was prepared, between two reports."
    return Chart("hits", "Cache hits", caption, {"data": data, "layout": layout}, _HEIGHT)


def disk_rows_chart(facts: RunFacts) -> Chart | None:
    """Rows read and written for each sample, over the samples trained on."""
    reads, written = _points(facts, "reads_per_sample"), _written(facts)
    if not reads:
        return None
    data = [_line("read", reads, "--train", "%{y:.2f}"), _line("written", written, "--eval", "%{y:.2f}")]
    data += _predicted(facts, "reads_per_sample", reads, "%{y:.2f}", "predicted reads, whole run")
    layout = _layout(facts, "rows a sample")
    layout["yaxis"] |= {"rangemode": "tozero"}
    caption = (
        "Rows read back, and changed rows written: as they leave memory, and at checkpoints (peaks). "
        "A row that was never trained is computed, so reads rise as rows are met again."
    )
    return Chart("tier-rows", "Rows to and from disk", caption, {"data": data, "layout": layout}, _HEIGHT)


def tier_bytes_chart(facts: RunFacts) -> Chart | None:
    """Bytes of rows in memory, of what finds them, and of files, on a logarithmic axis."""
    data = []
    for name, key, colour in (
        ("rows on disk", "disk_bytes", "--eval"),
        ("rows in memory", "memory_bytes", "--train"),
        ("index and buffers", "index_bytes", "--best"),
    ):
        points = [point for point in _points(facts, key) if point[1] > 0]
        if points:
            trace = _line(name, points, colour, "%{customdata}")
            trace["customdata"] = [format_bytes(value) for value in trace["y"]]
            data.append(trace)
    if not data:
        return None
    layout = _layout(facts, "bytes")
    layout["yaxis"] = byte_log_axis([value for trace in data for value in trace["y"]], "bytes")
    caption = (
        "Of all ranks together. Files also hold rows that were written again since, until they are collected."
    )
    return Chart("tier-bytes", "Bytes by tier", caption, {"data": data, "layout": layout}, _HEIGHT)


def _points(facts: RunFacts, key: str) -> Points:
    """A number of the tiers by samples trained on, of the reports that have it."""
    found = [(entry["samples"], (entry.get("tiers") or {}).get(key)) for entry in facts.training]
    return [(samples, value) for samples, value in found if value is not None]


def _written(facts: RunFacts) -> Points:
    points, before = [], 0
    for entry in facts.training:
        passed, before = entry["samples"] - before, entry["samples"]
        if entry.get("tiers") and passed > 0:
            points.append((entry["samples"], entry["tiers"]["written_rows"] / passed))
    return points


def _line(name: str, points: Points, colour: str, shown: str) -> Figure:
    trace = line(name, thin(points), colour, markers=len(points) < 3)
    return {**trace, "hovertemplate": f"{shown}<extra>{name}</extra>"}


def _predicted(
    facts: RunFacts, key: str, points: Sequence[tuple[float, float]], shown: str, name: str
) -> list[Figure]:
    """A dotted line at the mean that was predicted; none where nothing was."""
    if facts.prediction is None:
        return []
    value = facts.prediction[key]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [0, points[-1][0]],
            "y": [value, value],
            "line": {"color": "--best", "width": 2, "dash": "dot"},
            "hovertemplate": f"{shown}<extra>{name}</extra>",
        }
    ]


def _layout(facts: RunFacts, axis: str) -> Figure:
    return {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": {"title": {"text": axis}},
    }
