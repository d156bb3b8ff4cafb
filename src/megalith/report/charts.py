"""The charts of a run, as plotly.js figures.

Colours are names of the page's style variables ("--train"), which page.js fills in, so that one figure is
right in light and in dark. Each chart says in its caption what is to be seen; a chart without data is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from megalith.core.units import format_bytes, format_count, format_seconds
from megalith.report.collect import RunFacts, Values
from megalith.report.shell import Chart, Figure
from megalith.report.tables import TableFacts

MAX_POINTS = 1500
MAX_TABLES = 40

Numbers = Sequence[float | None]


def metric_chart(facts: RunFacts, key: str, title: str, axis: str, caption: str) -> Chart | None:
    """A metric over the samples trained on: of the training window, of evaluations, and the best possible."""
    window = [(entry["samples"], entry["window"].get(key)) for entry in facts.training]
    scored = [(entry["trained_samples"], entry.get(key)) for entry in facts.evaluations]
    return _curves(facts, key, title, axis, caption, window, scored)


def loss_chart(facts: RunFacts) -> Chart | None:
    """The loss the optimizer saw, beside the log loss of evaluations."""
    seen = [(entry["samples"], entry.get("loss")) for entry in facts.training]
    scored = [(entry["trained_samples"], entry.get("log_loss")) for entry in facts.evaluations]
    caption = "Mean over the batches since the last report."
    return _curves(facts, "log_loss", "Log loss", "log loss (nats)", caption, seen, scored)


def _curves(
    facts: RunFacts,
    key: str,
    title: str,
    axis: str,
    caption: str,
    seen: list[tuple[int, float | None]],
    scored: list[tuple[int, float | None]],
) -> Chart | None:
    seen = [point for point in seen if point[1] is not None]
    scored = [point for point in scored if point[1] is not None]
    if not seen and not scored:
        return None
    split = facts.evaluations[-1]["split"] if facts.evaluations else ""
    data = []
    if seen:
        data.append(_line("training", thin(seen), "--train", markers=len(seen) < 3))
    if scored:
        data.append(_line(split, scored, "--eval", markers=True))
    layout: Figure = {
        "xaxis": {"title": {"text": "samples"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": axis}, "range": _range(seen, scored, _best(facts, key))},
    }
    best = _best(facts, key)
    if best is not None:
        end = max(point[0] for point in (*seen, *scored))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "best possible",
                "x": [0, end],
                "y": [best, best],
                "line": {"color": "--best", "width": 2, "dash": "dot"},
                "hovertemplate": "%{y:.4f}<extra>best possible</extra>",
            }
        )
        caption += f" The dotted line is the best that any model can do on {split}; the rest is chance."
    rows = [entry["samples"] for entry in facts.evaluations if entry.get("samples")]
    if rows and min(rows) < max(rows):
        caption += f" On the way {split} is read to its first {min(rows):,} rows, at the end whole."
    return Chart(key, title, caption, {"data": data, "layout": layout}, 420 if key == "auc" else 320)


def calibration_chart(facts: RunFacts) -> Chart | None:
    """Predicted against observed click rate for each bin, above how many samples each bin holds."""
    if not facts.finals or not facts.finals[0].get("calibration_curve"):
        return None
    final = facts.finals[0]
    bins = final["calibration_curve"]
    width = min(row["high"] - row["low"] for row in bins)
    centres = [(row["low"] + row["high"]) / 2 for row in bins]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "perfect",
            "x": [0, 1],
            "y": [0, 1],
            "line": {"color": "--best", "width": 2, "dash": "dot"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": final["split"],
            "x": [row["mean_prediction"] for row in bins],
            "y": [row["click_rate"] for row in bins],
            "error_y": {
                "type": "data",
                "array": [_two_deviations(row) for row in bins],
                "color": "--eval",
                "thickness": 1.2,
                "width": 0,
            },
            "marker": {"color": "--eval", "size": 8},
            "customdata": [row["count"] for row in bins],
            "hovertemplate": "predicted %{x:.3f}<br>clicked %{y:.3f}<br>%{customdata:,.0f} samples"
            "<extra></extra>",
        },
        {
            "type": "bar",
            "name": "samples",
            "x": centres,
            "y": [row["count"] for row in bins],
            "width": width * 0.86,
            "yaxis": "y2",
            "marker": {"color": "--soft"},
            "showlegend": False,
            "hovertemplate": "%{y:,.0f} samples<extra></extra>",
        },
    ]
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "predicted click probability"}, "range": [0, 1], "anchor": "y2"},
        "yaxis": {"title": {"text": "observed click rate"}, "range": [-0.02, 1.02], "domain": [0.34, 1]},
        "yaxis2": {"title": {"text": "samples"}, "domain": [0, 0.22], "nticks": 3, "tickformat": "~s"},
    }
    caption = (
        f"Where the points lie on the diagonal, what is predicted at 10% happens in 10% of cases. "
        f"{final['split'].capitalize()} split, {len(bins)} bins; whiskers are two standard errors."
    )
    return Chart("calibration", "Calibration", caption, {"data": data, "layout": layout}, 420)


def rate_chart(facts: RunFacts) -> Chart | None:
    """Samples a second over the time of the run."""
    elapsed, points = 0.0, []
    for entry in facts.training:
        elapsed += entry["seconds"]
        points.append((elapsed, entry["samples_per_second"]))
    if not points:
        return None
    unit, divisor = ("minutes", 60.0) if elapsed > 180 else ("seconds", 1.0)
    points = [(seconds / divisor, rate) for seconds, rate in points]
    line = _line("samples a second", thin(points), "--train", markers=len(points) < 3)
    line |= {"fill": "tozeroy", "fillcolor": "--wash", "showlegend": False}
    line["hovertemplate"] = "%{y:,.0f} samples/s<extra></extra>"
    layout = {
        "xaxis": {"title": {"text": f"{unit} of training"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "samples/s"}, "rangemode": "tozero", "tickformat": "~s"},
    }
    caption = "Between two reports; a dip is an evaluation or a checkpoint."
    return Chart("rate", "Rate", caption, {"data": [line], "layout": layout}, 300)


def time_chart(facts: RunFacts) -> Chart | None:
    """Where the time went, one bar for each part of the loop."""
    spent = facts.time_spent
    if spent is None or not spent.total_seconds:
        return None
    parts = {**spent.parts, "other": spent.other_seconds}
    names = list(parts)[::-1]
    seconds = [parts[name] for name in names]
    shares = [value / spent.total_seconds for value in seconds]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": seconds,
            "marker": {"color": ["--soft" if name == "other" else "--train" for name in names]},
            "text": [
                f"{_duration(value)} · {share:.1%}" for value, share in zip(seconds, shares, strict=True)
            ],
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": "%{y}: %{x:.2f} s<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = {
        "hovermode": "closest",
        # Room for the label of the longest bar.
        "xaxis": {"title": {"text": "seconds"}, "range": [0, max(seconds) * 1.6], "nticks": 6},
        "yaxis": {"showgrid": False, "ticksuffix": "  "},
        "bargap": 0.35,
    }
    caption = (
        "`read` is waiting for data; `step` is the model and its tables; `other` has no span of its own."
    )
    if spent.sessions > 1:
        caption += f" Added up over {spent.sessions} sessions."
    return Chart("time", "Where the time went", caption, {"data": data, "layout": layout}, 300)


def size_chart(facts: RunFacts) -> Chart | None:
    """Bytes of each table, on a logarithmic axis: sizes span many powers of ten."""
    tables = facts.tables.tables[:MAX_TABLES]
    if not tables:
        return None
    tables = tables[::-1]
    smallest = min(table.weight_bytes for table in tables)
    largest = max(table.weight_bytes for table in tables)
    low, high = math.floor(math.log10(smallest)), math.log10(largest)
    ticks = [1024.0**power for power in range(5) if 10**low <= 1024**power <= largest * 1.2]
    if len(ticks) < 2:
        ticks = [float(smallest), float(largest)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [table.name for table in tables],
            "x": [table.weight_bytes for table in tables],
            "marker": {"color": "--train"},
            "text": [format_bytes(table.weight_bytes) for table in tables],
            "textposition": "outside",
            "cliponaxis": False,
            "customdata": [f"{format_count(table.rows)} rows of {table.dim}" for table in tables],
            "hovertemplate": "%{y}: %{text}<br>%{customdata}<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = {
        "hovermode": "closest",
        "xaxis": {
            "type": "log",
            "title": {"text": "bytes (logarithmic)"},
            "range": [low, low + (high - low) * 1.22 + 0.2],
            "tickvals": ticks,
            "ticktext": [format_bytes(tick).replace(".0", "") for tick in ticks],
        },
        "yaxis": {"showgrid": False, "ticksuffix": "  ", "dtick": 1},
        "bargap": 0.3,
    }
    total = format_bytes(sum(table.weight_bytes for table in facts.tables.tables))
    count = len(facts.tables.tables)
    shown = f"; the {MAX_TABLES} largest are shown" if count > MAX_TABLES else ""
    caption = f"{count} tables of {total} in all, without optimizer state{shown}."
    return Chart("sizes", "Table sizes", caption, {"data": data, "layout": layout}, _rows_height(tables))


def traffic_chart(facts: RunFacts) -> Chart | None:
    """Which share of each table's lookups goes to its most frequent ids."""
    tables = [table for table in facts.tables.tables[:MAX_TABLES] if table.traffic is not None][::-1]
    if not tables:
        return None
    found = [table.traffic for table in tables if table.traffic is not None]
    series = [
        ("missing", "--rank-0", [one.missing_share + one.unknown_share for one in found]),
        ("top 1", "--rank-1", [one.top_1_share for one in found]),
        ("2 to 10", "--rank-2", [one.top_10_share - one.top_1_share for one in found]),
        ("11 to 100", "--rank-3", [one.top_100_share - one.top_10_share for one in found]),
    ]
    rest = [max(0.0, 1 - sum(shares)) for shares in zip(*(values for _, _, values in series), strict=True)]
    series.append(("all others", "--rank-4", rest))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [table.name for table in tables],
            "x": [round(100 * value, 3) for value in values],
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}, {name}: %{{x:.1f}}%<extra></extra>",
        }
        for name, colour, values in series
    ]
    layout = {
        "barmode": "stack",
        "hovermode": "closest",
        "xaxis": {"title": {"text": "share of lookups (%)"}, "range": [0, 100], "dtick": 25},
        "yaxis": {"showgrid": False, "ticksuffix": "  ", "dtick": 1},
        "bargap": 0.3,
        "legend": {"traceorder": "normal"},
    }
    caption = (
        "Ids ranked by how often they occur in the training split; missing values and those outside the "
        "vocabulary are gray. Long dark bars cache well; where `all others` is long, rows are touched rarely."
    )
    return Chart(
        "traffic", "Traffic on tables", caption, {"data": data, "layout": layout}, _rows_height(tables)
    )


def thin(points: Sequence[tuple[float, Any]], most: int = MAX_POINTS) -> list[tuple[float, Any]]:
    """At most about `most` points, evenly picked, the last one always among them."""
    stride = -(-len(points) // most) or 1
    kept = list(points[::stride])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def _line(name: str, points: Sequence[tuple[float, Any]], colour: str, markers: bool) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": colour, "width": 2.2},
        "marker": {"color": colour, "size": 6},
        "hovertemplate": f"%{{y:.4f}}<extra>{name}</extra>",
    }


def _best(facts: RunFacts, key: str) -> float | None:
    """The best possible value of the split that the curve of evaluations shows."""
    split = facts.evaluations[-1]["split"] if facts.evaluations else None
    found = [one for one in facts.finals if one["split"] == split]
    value = found[0].get(f"best_{key}") if found else None
    return None if value is None else float(value)


def _range(
    seen: Sequence[tuple[float, float | None]],
    scored: Sequence[tuple[float, float | None]],
    best: float | None,
) -> list[float] | None:
    """Leaves out the fall of the first few reports, beside which nothing else could be told apart."""
    if len(seen) < 20:
        return None
    settled = [value for _, value in seen[len(seen) // 8 :] if value is not None]
    shown = settled + [value for _, value in scored if value is not None]
    shown += [best] if best is not None else []
    low, high = min(shown), max(shown)
    room = (high - low) * 0.06 or abs(high) * 0.01
    return [low - room, high + room]


def _two_deviations(row: Values) -> float:
    rate = row["click_rate"]
    return 2 * math.sqrt(max(rate * (1 - rate), 0.0) / row["count"]) if row["count"] > 0 else 0.0


def _rows_height(tables: Sequence[TableFacts]) -> int:
    return 110 + max(3, len(tables)) * 21


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else format_seconds(seconds)
