"""Charts of what each rank carries: its time, for whom it waited, its lookups, its memory by tier."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.comm.all_to_all import WAIT_FOR
from megalith.core.units import format_bytes
from megalith.report.charts.axes import byte_axis, duration_unit, samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.charts.speed import format_time
from megalith.report.charts.step_time import OUTSIDE
from megalith.report.collect import RunFacts, Values
from megalith.report.shell import Chart, Figure
from megalith.report.waits import RankTimes

_KINDS = (
    ("batch", "--eval"),
    ("other ranks", "--soft"),
    ("tables", "--rank-1"),
    ("layers", "--train"),
    ("the rest", "--rank-4"),
)
_TABLE_SPANS = ("exchange ids", "resolve rows", "rows from disk", "look up rows", "update rows")
_LAYER_SPANS = ("forward", "backward", "update dense")
_PARTS = (
    ("weights", ("weights",), "--train"),
    ("optimizer state", ("state",), "--rank-3"),
    ("index, bookkeeping", ("index", "bookkeeping", "utility", "sketch", "free"), "--rank-4"),
)
_MAX_LABELLED = 16
"""With more ranks bars have no text of their own; it shows on hover."""


def rank_time_chart(facts: RunFacts) -> Chart | None:
    """A mean step of every rank, in what it did; None with one rank."""
    times = [own for own in facts.rank_times if own.steps and own.own.get("loop")]
    if len(times) < 2:
        return None
    found = [_by_kind(own) for own in times]
    unit, scale = duration_unit(max(sum(kinds.values()) for kinds in found))
    names = [f"rank {own.rank}" for own in times]
    data = [
        _bar(kind, names, [scale * kinds[kind] for kinds in found], colour)
        | {
            "customdata": [format_time(kinds[kind]) for kinds in found],
            "hovertemplate": f"%{{customdata}}<extra>{kind}</extra>",
        }
        for kind, colour in _KINDS
    ]
    layout = _bars_layout({"title": {"text": f"{unit} a step"}, "rangemode": "tozero"}, names)
    caption = (
        "Of the thread that computes, in a mean step: waiting for its batch, which others may have held up; "
        "waiting in exchanges; kernels of tables; layers."
    )
    return Chart(
        "rank-time", "A step of every rank", caption, {"data": data, "layout": layout}, _height(names)
    )


def wait_matrix_chart(facts: RunFacts) -> Chart | None:
    """Seconds for which each rank stood until another had come."""
    waits = facts.waits
    if waits is None:
        return None
    names = [f"rank {rank}" for rank in waits.ranks]
    shown = [[format_time(seconds) if seconds else "" for seconds in row] for row in waits.for_whom]
    data = [
        {
            "type": "heatmap",
            "x": names,
            "y": names,
            "z": waits.for_whom,
            "text": shown,
            "texttemplate": "%{text}" if len(names) <= _MAX_LABELLED else "",
            "colorscale": [[0, "--grid"], [1, "--eval"]],
            "showscale": False,
            "xgap": 2,
            "ygap": 2,
            "hovertemplate": "%{y} waited %{text} for %{x}<extra></extra>",
        }
    ]
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "waited for"}, "showgrid": False, "type": "category"},
        "yaxis": {
            "title": {"text": "who waited"},
            "showgrid": False,
            "type": "category",
            "autorange": "reversed",
        },
    }
    caption = (
        f"In {waits.exchanges:,} exchanges, those of ids ahead of the step included: seconds until the last "
        f"rank came. Another {format_time(sum(waits.exchanging))} went into the exchanges themselves."
    )
    return Chart(
        "who-waits", "Who waits for whom", caption, {"data": data, "layout": layout}, _height(names) + 40
    )


def lookup_chart(facts: RunFacts) -> Chart | None:
    """Lookups and bytes sent of every rank a sample, beside their mean; None with one rank."""
    loads, samples = rank_totals(facts.training)
    if len(loads) < 2 or not samples:
        return None
    names = [f"rank {number}" for number in range(len(loads))]
    lookups = [load["lookups"] / samples for load in loads]
    mean = sum(lookups) / len(lookups)
    bars = _bar("lookups", names, lookups, "--train") | {"showlegend": False}
    bars["customdata"] = [f"{format_bytes(load['sent_bytes'] / samples)} sent a sample" for load in loads]
    bars["hovertemplate"] = "%{x:.2f} lookups a sample, %{customdata}<extra></extra>"
    layout = _bars_layout({"title": {"text": "ids looked up a sample"}, "rangemode": "tozero"}, names)
    layout["shapes"] = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": mean, "x1": mean, "y0": 0, "y1": 1}
        | {"line": {"color": "--eval", "width": 2, "dash": "dot"}}
    ]
    above = max(lookups) / mean - 1 if mean else 0.0
    caption = (
        f"Rows each rank looked up for all of them; the dotted line is the mean, the fullest rank is "
        f"{above:.1%} above it. {format_bytes(sum(load['sent_bytes'] for load in loads) / samples)} a sample "
        "were sent."
    )
    return Chart(
        "rank-lookups", "Lookups of every rank", caption, {"data": [bars], "layout": layout}, _height(names)
    )


def rank_memory_chart(facts: RunFacts) -> Chart | None:
    """Bytes of every rank at the last report: of tables by what they are, the rest of its process, disk."""
    told = [entry["ranks"] for entry in facts.training if entry.get("ranks")]
    if not told:
        return None
    loads = told[-1]
    names = [f"rank {number}" for number in range(len(loads))] if len(loads) > 1 else ["memory"]
    data = []
    for name, keys, colour in _PARTS:
        data.append((name, [sum(load["table_bytes"].get(key, 0) for key in keys) for load in loads], colour))
    in_tables = [sum(values[number] for _, values, _ in data) for number in range(len(loads))]
    # Pages of tables that nothing has touched yet are not resident.
    rest = [max((load["resident_bytes"] or 0) - own, 0) for load, own in zip(loads, in_tables, strict=True)]
    data.append(("the rest of the process", rest, "--soft"))
    figures = [_bytes_bar(name, names, values, colour) for name, values, colour in data if any(values)]
    highest = max(sum(values[number] for _, values, _ in data) for number in range(len(loads)))
    disk = [load["table_bytes"].get("disk", 0) for load in loads]
    labels = names
    if any(disk):
        on_disk = [f"{name}, disk" if len(loads) > 1 else "disk" for name in names]
        figures.append(_bytes_bar("rows on disk", on_disk, disk, "--eval"))
        labels = [label for pair in zip(names, on_disk, strict=True) for label in pair]
        highest = max(highest, *disk)
    layout = _bars_layout(byte_axis(highest), labels)
    caption = (
        "At the last report. Tables are counted by their stores; the rest of the process is what the system "
        "says beyond them: layers, buffers, libraries."
    )
    return Chart(
        "rank-memory", "Memory by tier", caption, {"data": figures, "layout": layout}, _height(labels)
    )


def resident_chart(facts: RunFacts) -> Chart | None:
    """Memory of the process over the samples: flat, in a run that goes on for long."""
    points = [
        (entry["samples"], max(load["resident_bytes"] for load in entry["ranks"]))
        for entry in facts.training
        if entry.get("ranks") and all(load.get("resident_bytes") for load in entry["ranks"])
    ]
    if len(points) < 2:
        return None
    drawn = line("resident memory", thin(points), "--train", markers=len(points) < 3) | {"showlegend": False}
    drawn |= {"fill": "tozeroy", "fillcolor": "--wash", "customdata": [format_bytes(y) for y in drawn["y"]]}
    drawn["hovertemplate"] = "%{customdata}<extra></extra>"
    layout = {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": byte_axis(max(value for _, value in points)),
    }
    several = len(facts.training[-1].get("ranks") or []) > 1
    caption = f"Resident memory of {'the largest process' if several else 'the process'}, at each report."
    return Chart("resident", "Memory over time", caption, {"data": [drawn], "layout": layout}, 300)


def rank_totals(training: Sequence[Values]) -> tuple[list[Values], int]:
    """What every rank waited, looked up and sent, and in how many samples; bytes are those at the end.

    Of a run that was resumed on another number of ranks, since then.
    """
    totals: list[Values] = []
    samples = before = 0
    for entry in training:
        loads = entry.get("ranks") or []
        if len(loads) != len(totals):
            totals, samples = [dict.fromkeys(_SUMMED, 0) for _ in loads], 0
        for own, load in zip(totals, loads, strict=True):
            for key in _SUMMED:
                own[key] += load[key]
            own["table_bytes"], own["resident_bytes"] = load["table_bytes"], load.get("resident_bytes")
        samples, before = samples + entry["samples"] - before, entry["samples"]
    return totals, samples


_SUMMED = ("data_wait_seconds", "rank_wait_seconds", "lookups", "sent_bytes")


def _by_kind(times: RankTimes) -> dict[str, float]:
    """Seconds a step of the thread that computes."""
    kinds = {kind: 0.0 for kind, _ in _KINDS}
    for name, seconds in times.own["loop"].items():
        if name in OUTSIDE:
            continue
        if name == "read":
            kind = "batch"
        elif name.startswith(WAIT_FOR):
            kind = "other ranks"
        elif name in _TABLE_SPANS:
            kind = "tables"
        else:
            kind = "layers" if name in _LAYER_SPANS else "the rest"
        kinds[kind] += seconds / times.steps
    return kinds


def _bar(name: str, names: Sequence[str], values: Sequence[float], colour: str) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(names),
        "x": list(values),
        "marker": {"color": colour},
    }


def _bytes_bar(name: str, names: Sequence[str], values: Sequence[float], colour: str) -> Figure:
    texts = [format_bytes(value) for value in values]
    return _bar(name, names, values, colour) | {
        "customdata": texts,
        "hovertemplate": f"%{{customdata}}<extra>{name}</extra>",
    }


def _bars_layout(axis: Figure, names: Sequence[str]) -> Figure:
    return {
        "legend": {"traceorder": "normal"},
        "barmode": "stack",
        "hovermode": "closest",
        "xaxis": axis,
        "yaxis": {
            "showgrid": False,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": list(names)[::-1],
            "nticks": 24,
        },
        "bargap": 0.35,
    }


def _height(names: Sequence[str]) -> int:
    """A bar has its room; of hundreds some share it."""
    return 150 + 34 * min(max(len(names), 2), 24)
