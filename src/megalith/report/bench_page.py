"""A saved result of `megalith bench` as one HTML page: what was measured, beside whom, on which machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError
from megalith.core.files import read_json_object, write_atomic
from megalith.core.units import format_bytes, format_count, format_duration
from megalith.report.charts.axes import byte_axis, duration_unit, label_axis, log_axis
from megalith.report.charts.quality_bytes import quality_bytes_chart
from megalith.report.shell import Chart, Figure, figures_html, html_page, section_html

Values = dict[str, Any]
_COLOURS = ("--train", "--eval", "--best", "--soft")
_AXES = {"dim": "columns", "lookups": "ids a bag", "batch": "samples a step", "rows": "rows a table"}


def write_bench_report(result: Path, out: Path) -> Values:
    """Draws a result file, whole or not at all; returns what it is of."""
    content = read_result(result)
    try:
        page = render_bench(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        # Results have no schema of their own; a key that is not as expected shows while drawing.
        raise DataError(
            f"{result} does not hold what `megalith bench {content['suite']}` writes "
            f"({type(error).__name__}: {error}); regenerate it."
        ) from error
    write_atomic(out, page)
    return {"suite": content["suite"], "time": content["time"]}


def read_result(path: Path) -> Values:
    """A result as `megalith bench ... --out` wrote it."""
    content = read_json_object(path, fix="pass a file that --out of `megalith bench` wrote")
    keys = {"suite", "time", "machine", "versions", "settings", "results"}
    if not keys <= content.keys() or str(content["suite"]) not in _CHARTS:
        raise DataError(
            f"{path} is no result that can be drawn; pass a file that --out of `megalith bench "
            f"{'|'.join(_CHARTS)}` wrote."
        )
    return content


def render_bench(content: Values) -> str:
    """The complete HTML."""
    shown = _CHARTS[content["suite"]](content["results"])
    machine = content["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores"
    if machine.get("memory_bytes"):
        where += f", {format_bytes(machine['memory_bytes'])}"
    title = f"Benchmark: {content['suite']}"
    header = (
        '<header><p class="eyebrow">Megalith · benchmark</p>'
        f'<div class="title"><h1>{escape(title)}</h1></div>'
        f'<p class="lead">{escape(where)} · {escape(content["time"])}</p></header>'
    )
    facts = {
        **{name: _text(value) for name, value in content["settings"].items()},
        **{f"version of {name}": str(value) for name, value in content["versions"].items()},
        "load average": _text(content.get("load_average", [])),
    }
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    details = (
        f'<details class="card" open><summary>Settings and versions</summary><dl>{listed}</dl></details>'
    )
    body = header + section_html("Measured", figures_html(shown)) + section_html("Details", details)
    return html_page(title, body, shown)


def _embedding(results: Values) -> list[Chart]:
    measured = results["measured"]
    charts = []
    plain = [entry for entry in measured if not entry["axis"]]
    if plain:
        labels = [_label(entry["shape"]) for entry in plain]
        for step in ("forward", "backward", "total"):
            series = {
                name: [_seconds(entry["candidates"].get(name, {}), step) for entry in plain]
                for name in _names(plain)
            }
            caption = "Time of a step, medians; shorter is better."
            charts.append(_bars(step, step.capitalize(), caption, labels, series, "s"))
        roofs = [entry["roofline"]["share"] for entry in plain if "roofline" in entry]
        if len(roofs) == len(plain):
            parts = {step: [100 * roof[step] for roof in roofs] for step in ("forward", "backward")}
            caption = (
                "Bytes that ours must move, as a share of what the memory does for random rows; ids that "
                "repeat come from the caches and may pass 100%."
            )
            charts.append(_bars("roof", "Share of the memory's speed", caption, labels, parts, "%"))
    axes = dict.fromkeys((entry["axis"], entry["shape"]["zipf"]) for entry in measured)
    for axis, zipf in axes:
        if axis in _AXES:
            points = [entry for entry in measured if (entry["axis"], entry["shape"]["zipf"]) == (axis, zipf)]
            charts.append(_curve(axis, zipf, points))
    return charts


def _train(results: Values) -> list[Chart]:
    sides = results["candidates"]
    times = {"a step": [entry["median_seconds"] for entry in sides.values()]}
    caption = "Medians; shorter is better."
    if "parallel_efficiency" in results:
        caption += f" Parallel efficiency of the ranks: {results['parallel_efficiency']:.0%}."
    charts = [_bars("steps", "A training step", caption, list(sides), times, "s")]
    if "parts" in results:
        step_parts = results["parts"]
        parts = {"megalith": [entry["median_seconds"] for entry in step_parts.values()]}
        charts.append(_bars("parts", "Where ours goes", "Medians.", list(step_parts), parts, "s"))
    if "sent_bytes_a_step" in results:
        sent = results["sent_bytes_a_step"]
        sizes = {"megalith": list(sent.values())}
        caption = "What all ranks of ours send for the tables in a step."
        charts.append(_bars("sent", "Sent between ranks", caption, list(sent), sizes, "B"))
    return charts


def _data(results: Values) -> list[Chart]:
    charts = []
    for key, title, rate in (
        ("prepare", "Rows prepared a second", "rows_per_second"),
        ("loader", "Samples loaded a second", "samples_per_second"),
    ):
        sides = results.get(key, {}).get("candidates", results.get(key, {}))
        rates = {
            name: entry[rate] for name, entry in sides.items() if isinstance(entry, dict) and rate in entry
        }
        if rates:
            caption = "Medians; longer is better."
            charts.append(_bars(key, title, caption, list(rates), {"a second": list(rates.values())}, "/s"))
    return charts


_CHARTS: dict[str, Callable[[Values], list[Chart]]] = {
    "data": _data,
    "embedding": _embedding,
    "train": _train,
    "adaptive": lambda results: [quality_bytes_chart(results)],
}


def _bars(
    key: str,
    title: str,
    caption: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    unit: str,
) -> Chart:
    """Bars with their values; `unit` is s, B, % or /s."""
    known = [value for values in series.values() for value in values if value is not None]
    longest = max(known, default=0.0)
    axis, scale, write = _value_axis(unit, longest)
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(labels),
            "x": [None if value is None else scale * value for value in values],
            "marker": {"color": colour},
            "text": ["" if value is None else write(value) for value in values],
            "textposition": "outside",
            "cliponaxis": False,
            "customdata": list(labels),
            "hovertemplate": f"%{{customdata}}: %{{text}}<extra>{escape(name)}</extra>",
            "showlegend": len(series) > 1,
        }
        for (name, values), colour in zip(series.items(), _COLOURS, strict=False)
    ]
    layout = {
        "barmode": "group",
        "hovermode": "closest",
        "xaxis": axis,
        # Read from above, ours first.
        "yaxis": {**label_axis(labels, 34), "autorange": "reversed"},
        "legend": {"traceorder": "normal"},
    }
    height = 110 + len(labels) * (12 + 18 * len(series))
    return Chart(key, title, caption, {"data": data, "layout": layout}, height)


def _value_axis(unit: str, longest: float) -> tuple[Figure, float, Callable[[float], str]]:
    """The axis of bars with room for the value of the longest, what to multiply by, and how to write."""
    if unit == "B":
        return byte_axis(longest, room=1.25), 1.0, format_bytes
    if unit == "s":
        title, scale = duration_unit(longest)
        return {"title": {"text": title}, "range": [0, 1.25 * scale * longest]}, scale, format_duration
    axis: Figure = {"title": {"text": unit}, "range": [0, 1.25 * longest]}
    if unit == "%":
        return axis, 1.0, lambda share: f"{share:.0f}%"
    return axis | {"tickformat": "~s"}, 1.0, lambda rate: f"{format_count(rate)}{unit}"


def _curve(axis: str, zipf: float | None, points: list[Values]) -> Chart:
    data: list[Figure] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [entry["shape"][axis] for entry in points],
            "y": _in_milliseconds([_seconds(entry["candidates"].get(name, {}), "total") for entry in points]),
            "line": {"color": colour, "width": 2.2},
            "marker": {"color": colour, "size": 6},
            "hovertemplate": f"%{{y:.3f}} ms<extra>{escape(name)}</extra>",
        }
        for name, colour in zip(_names(points), _COLOURS, strict=False)
    ]
    times = [time for trace in data for time in trace["y"] if time is not None]
    sizes = [entry["shape"][axis] for entry in points]
    layout = {
        "xaxis": log_axis(sizes, _AXES[axis], format_count),
        "yaxis": log_axis(times, "ms a step"),
    }
    ids = "uniform" if zipf is None else f"Zipf {zipf:g}"
    caption = f"Forward and backward, {ids} ids; where a line has a gap that side cannot run the shape."
    key = f"{axis}-{'uniform' if zipf is None else 'zipf'}"
    return Chart(key, f"Time by {_AXES[axis]}, {ids}", caption, {"data": data, "layout": layout})


def _names(measured: Sequence[Values]) -> list[str]:
    return list(dict.fromkeys(name for entry in measured for name in entry["candidates"]))


def _seconds(candidate: Values, step: str) -> float | None:
    return float(candidate[step]["median_seconds"]) if step in candidate else None


def _in_milliseconds(seconds: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 1e3 * value for value in seconds]


def _label(shape: Values) -> str:
    ids = "uniform" if shape["zipf"] is None else f"Zipf {shape['zipf']:g}"
    count = f"{shape['lookups']} id{'s' if shape['lookups'] > 1 else ''}"
    return f"dim {shape['dim']}, {count}, {ids}"


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
