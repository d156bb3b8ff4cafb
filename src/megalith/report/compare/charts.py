"""Learning curves of several runs, one colour a run: evaluations with markers, training windows faint."""

from __future__ import annotations

from html import escape

from megalith.report.charts.axes import samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.charts.quality import best_step_mark, metric_axis
from megalith.report.compare.facts import METRIC_NAMES, RunComparison
from megalith.report.html_tables import shorten
from megalith.report.shell import Chart, Figure

COLOURS = ("#2f6fde", "#d9622b", "#2f9e63", "#9b5fc0", "#c23b6b", "#1f9fb3", "#b08a1e", "#7d8797")
"""Seen on white and on black."""
_DASHES = ("solid", "dash", "dot", "dashdot")
_CAPTIONS = {
    "ne": "Log loss over that of always predicting the click rate; lower is better.",
    "log_loss": "Nats a sample; lower is better.",
    "auc": "Chance that a click is ranked above a non-click; higher is better.",
}


def run_colour(number: int) -> str:
    """The colour of a run on the whole page."""
    return COLOURS[number % len(COLOURS)]


def curve_charts(comparison: RunComparison) -> list[Chart | None]:
    """A chart for each metric that any run has."""
    return [_curves(comparison, key) for key in ("ne", "log_loss", "auc")]


def _curves(comparison: RunComparison, key: str) -> Chart | None:
    data: list[Figure] = []
    for number, run in enumerate(comparison.runs):
        name = shorten(comparison.names[number], 28)
        training = [
            (entry["samples"], entry.get("loss") if key == "log_loss" else entry["window"].get(key))
            for entry in run.training
        ]
        scored = [(entry["trained_samples"], entry.get(key)) for entry in run.evaluations]
        seen = [(samples, value) for samples, value in training if value is not None]
        found = [(samples, value) for samples, value in scored if value is not None]
        own = [line(name, found, run_colour(number), markers=True)] if found else []
        if seen:
            faint = line(name, thin(seen), run_colour(number), markers=not found and len(seen) < 3)
            faint |= {"opacity": 0.4, "showlegend": not found}
            faint["line"] = {**faint["line"], "width": 1.4}
            faint["hovertemplate"] = f"%{{y:.4f}}<extra>{escape(name)}, training</extra>"
            own.append(faint)
        mark = best_step_mark(run, key, run_colour(number), name) if found else []
        data += [_dashed(trace, number) for trace in own] + [{**trace, "showlegend": False} for trace in mark]
    if not data:
        return None
    sizes = {run.samples_per_epoch for run in comparison.runs}
    last = max(run.samples for run in comparison.runs)
    layout = {
        # Runs whose epochs are of one length share the ticks.
        "xaxis": samples_axis(sizes.pop() if len(sizes) == 1 else None, last),
        "yaxis": metric_axis(METRIC_NAMES[key]),
        "hovermode": "closest",
    }
    title = {"ne": "Normalized entropy", "log_loss": "Log loss", "auc": "AUC"}[key]
    caption = f"{_CAPTIONS[key]} Evaluations have markers, a star the best step; training is faint."
    return Chart(f"compare-{key}", title, caption, {"data": data, "layout": layout}, 400)


def _dashed(trace: Figure, number: int) -> Figure:
    """Runs beyond the colours differ by their dashes."""
    dash = _DASHES[number // len(COLOURS) % len(_DASHES)]
    return {**trace, "line": {**trace["line"], "dash": dash}}
