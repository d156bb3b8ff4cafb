"""Charts of where the time of a run went: samples a second, and the parts of the loop."""

from __future__ import annotations

from megalith.core.units import format_duration, format_seconds
from megalith.report.charts.axes import duration_unit
from megalith.report.charts.lines import line, thin
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart


def rate_chart(facts: RunFacts) -> Chart | None:
    """Samples a second over the time of the run."""
    elapsed, points = 0.0, []
    for entry in facts.training:
        elapsed += entry["seconds"]
        points.append((elapsed, entry["samples_per_second"]))
    if not points:
        return None
    highest = max(rate for _, rate in points)
    unit, divisor = ("minutes", 60.0) if elapsed > 180 else ("seconds", 1.0)
    points = [(seconds / divisor, rate) for seconds, rate in points]
    rate = line("samples a second", thin(points), "--train", markers=len(points) < 3)
    rate |= {"fill": "tozeroy", "fillcolor": "--wash", "showlegend": False}
    rate["hovertemplate"] = "%{y:,.0f} samples/s<extra></extra>"
    layout = {
        "xaxis": {"title": {"text": f"{unit} of training"}, "rangemode": "tozero"},
        "yaxis": {
            "title": {"text": "samples/s"},
            "rangemode": "tozero",
            "tickformat": "~s" if highest > 10 else "",
        },
    }
    caption = "Between two reports; a dip is an evaluation or a checkpoint."
    return Chart("rate", "Rate", caption, {"data": [rate], "layout": layout}, 300)


def time_chart(facts: RunFacts) -> Chart | None:
    """Where the time went, one bar for each part of the loop."""
    spent = facts.time_spent
    if spent is None or not spent.total_seconds:
        return None
    parts = {**spent.parts, "other": spent.other_seconds}
    names = list(parts)[::-1]
    seconds = [parts[name] for name in names]
    unit, scale = duration_unit(max(seconds))
    shares = [value / spent.total_seconds for value in seconds]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [scale * value for value in seconds],
            "marker": {"color": ["--soft" if name == "other" else "--train" for name in names]},
            "text": [
                f"{format_time(value)} · {share:.1%}" for value, share in zip(seconds, shares, strict=True)
            ],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": "%{y}: %{text}<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = {
        "hovermode": "closest",
        # Room for the label of the longest bar.
        "xaxis": {"title": {"text": unit}, "range": [0, scale * max(seconds) * 1.6], "nticks": 6},
        "yaxis": {"showgrid": False, "ticksuffix": "  "},
        "bargap": 0.35,
    }
    caption = (
        "`read` is waiting for data; `step` is the model and its tables; `other` has no span of its own."
    )
    if spent.sessions > 1:
        caption += f" Added up over {spent.sessions} sessions."
    return Chart("time", "Where the time went", caption, {"data": data, "layout": layout}, 300)


def format_time(seconds: float) -> str:
    """Of a run or of a part of it: hours and minutes where it is long, three digits where it is short."""
    return format_duration(float(f"{seconds:.3g}")) if seconds < 100 else format_seconds(seconds)
