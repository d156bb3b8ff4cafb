"""Charts of a step: the seconds of every span from the reader to the kernels, and how long steps waited."""

from __future__ import annotations

from megalith.comm.all_to_all import WAIT_FOR
from megalith.report.charts.axes import duration_unit, samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.charts.speed import format_time
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart, Figure

ORDER = (
    *("read batch", "exchange ids", "wait for indices", "resolve rows", "rows from disk", "read"),
    *("look up rows", "wait for vectors", "forward", "backward", "wait for gradients", "update rows"),
    *("wait for sums", "update dense", "step", "metrics", "publish", "evaluate", "checkpoint"),
)
"""Spans as a batch meets them; others follow."""
OUTSIDE = ("evaluate", "checkpoint", "publish")
"""Of the loop, but not of every step."""
_SHOWN = {
    "read": "read: until the batch is there",
    "forward": "forward: layers",
    "backward": "backward: layers",
    "step": "step: the rest",
}
_LOOP = "loop"


def step_chart(facts: RunFacts) -> Chart | None:
    """Seconds of each span in a mean step, those of threads that work ahead beside those of the loop."""
    spent = facts.time_spent
    if spent is None or not spent.steps or not spent.own.get(_LOOP):
        return None
    bars = [
        (name, thread, seconds / spent.steps)
        for thread, names in spent.own.items()
        for name, seconds in names.items()
        if name not in OUTSIDE and seconds > 0
    ]
    bars.sort(key=lambda bar: (bar[1] == _LOOP, ORDER.index(bar[0]) if bar[0] in ORDER else len(ORDER)))
    whole = sum(seconds for _, thread, seconds in bars if thread == _LOOP)
    unit, scale = duration_unit(max(seconds for *_, seconds in bars))
    kinds = (
        ("computing", "--train", lambda name, thread: thread == _LOOP and not _is_waiting(name)),
        ("waiting", "--eval", lambda name, thread: thread == _LOOP and _is_waiting(name)),
        ("on other threads, ahead", "--soft", lambda name, thread: thread != _LOOP),
    )
    data: list[Figure] = []
    for kind, colour, belongs in kinds:
        own = [bar for bar in bars if belongs(bar[0], bar[1])]
        if own:
            texts = [
                f"{format_time(seconds)} \u00b7 {seconds / whole:.1%}"
                if thread == _LOOP
                else format_time(seconds)
                for _, thread, seconds in own
            ]
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": kind,
                    "y": [_label(name, thread) for name, thread, _ in own],
                    "x": [scale * seconds for *_, seconds in own],
                    "marker": {"color": colour},
                    "text": texts,
                    "textposition": "outside",
                    "cliponaxis": False,
                    "hovertemplate": "%{y}: %{text}<extra></extra>",
                }
            )
    labels = [_label(name, thread) for name, thread, _ in bars]
    layout = {
        "hovermode": "closest",
        "barmode": "overlay",
        "xaxis": {
            "title": {"text": f"{unit} a step"},
            "range": [0, scale * max(seconds for *_, seconds in bars) * 1.6],
            "nticks": 6,
        },
        "yaxis": {
            "showgrid": False,
            "ticksuffix": "  ",
            "categoryorder": "array",
            "categoryarray": labels[::-1],
        },
        "bargap": 0.3,
    }
    caption = (
        f"Mean of {spent.steps:,} steps"
        + (" of rank 0" if len(facts.rank_times) > 1 else "")
        + f", {format_time(whole)} each: seconds of each span without those of spans within it, "
        "evaluations included. What other threads do ahead costs a step nothing until `read` waits for it."
    )
    return Chart(
        "step", "Where a step's time goes", caption, {"data": data, "layout": layout}, 110 + 27 * len(bars)
    )


def wait_chart(facts: RunFacts) -> Chart | None:
    """The share of the time for which steps waited, for data and for other ranks, over the samples."""
    told = [entry for entry in facts.training if entry.get("ranks") and entry["seconds"] > 0]
    if not told:
        return None
    data = []
    for name, key, colour in (
        ("for data", "data_wait_seconds", "--eval"),
        ("for other ranks", "rank_wait_seconds", "--train"),
    ):
        points = [
            (entry["samples"], max(load[key] for load in entry["ranks"]) / entry["seconds"]) for entry in told
        ]
        if key == "data_wait_seconds" or any(value for _, value in points):
            drawn = line(name, thin(points), colour, markers=len(points) < 3)
            data.append({**drawn, "hovertemplate": f"%{{y:.1%}}<extra>{name}</extra>"})
    highest = max(value for trace in data for value in trace["y"])
    layout = {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": {
            "title": {"text": "share of the time"},
            "tickformat": ".0%",
            "range": [0, max(1.1 * highest, 0.05)],
        },
    }
    several = " Of the rank that waited longest." if len(told[0]["ranks"]) > 1 else ""
    caption = f"Between two reports; the first includes the start of the readers.{several}"
    return Chart("waiting", "Waiting", caption, {"data": data, "layout": layout}, 300)


def _is_waiting(name: str) -> bool:
    return name == "read" or name.startswith(WAIT_FOR)


def _label(name: str, thread: str) -> str:
    shown = _SHOWN.get(name, name)
    return shown if thread == _LOOP else f"{shown} ({thread.removeprefix('megalith-')})"
