"""Charts of how well a run's model predicts: loss, metrics over the samples trained on, calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from megalith.report.charts.axes import samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.collect import RunFacts, Values
from megalith.report.shell import Chart, Figure


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
        data.append(line("training", thin(seen), "--train", markers=len(seen) < 3))
    if scored:
        data.append(line(split, scored, "--eval", markers=True))
        data += best_step_mark(facts, key, "--eval")
    layout: Figure = {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": metric_axis(axis, _range(seen, scored, _best(facts, key))),
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


def best_step_mark(facts: RunFacts, key: str, colour: str, name: str = "") -> list[Figure]:
    """A star on a curve of evaluations where it was best."""
    entry = facts.best_evaluation
    if entry is None or entry.get(key) is None:
        return []
    words = f"best step {entry['step']:,}"
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name or words,
            "x": [entry["trained_samples"]],
            "y": [entry[key]],
            "marker": {
                "color": colour,
                "size": 15,
                "symbol": "star",
                "line": {"color": "--paper", "width": 1},
            },
            "hovertemplate": f"%{{y:.4f}}<extra>{escape(name + ', ' if name else '')}{words}</extra>",
        }
    ]


def metric_axis(title: str, limits: list[float] | None = None) -> Figure:
    """Of a metric: digits, never prefixes such as 300u."""
    return {"title": {"text": title}, "range": limits, "exponentformat": "none"}


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


def _best(facts: RunFacts, key: str) -> float | None:
    """The best possible value of the split that the curve of evaluations shows."""
    split = facts.evaluations[-1]["split"] if facts.evaluations else None
    finals = [final for final in facts.finals if final["split"] == split]
    value = finals[0].get(f"best_{key}") if finals else None
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
