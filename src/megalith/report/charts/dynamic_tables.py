"""Charts of dynamic tables: how many ids have a row, how many come and go, how many lookups find none."""

from __future__ import annotations

from megalith.report.charts.axes import samples_axis
from megalith.report.charts.lines import line, thin
from megalith.report.collect import RunFacts
from megalith.report.shell import Chart, Figure

_HEIGHT = 300
Points = list[tuple[float, float]]


def id_chart(facts: RunFacts) -> Chart | None:
    """Ids with a row, beside the bound, over the samples trained on."""
    points = _points(facts, "ids")
    if not points:
        return None
    data = [
        _line("ids with a row", points, "--train", "%{y:,}"),
        {
            **_line("bound", _points(facts, "bound"), "--best", "%{y:,}"),
            "mode": "lines",
            "line": {"color": "--best", "width": 2, "dash": "dot"},
        },
    ]
    caption = "Of all dynamic tables together: the bound is never exceeded."
    return Chart("dynamic-ids", "Ids with a row", caption, _figure(facts, data, "ids"), _HEIGHT)


def turnover_chart(facts: RunFacts) -> Chart | None:
    """Ids that got a row and that lost one, for each thousand samples."""
    admitted = _rates(facts, ("admitted",))
    if not admitted:
        return None
    expired = ("expired_by_batches", "expired_by_seconds", "expired_by_score")
    data = [
        _line("admitted", admitted, "--train", "%{y:.1f}"),
        _line("evicted for others", _rates(facts, ("evicted", "shrunk")), "--eval", "%{y:.1f}"),
    ]
    if any(value for _, value in _rates(facts, expired)):
        data.append(_line("expired", _rates(facts, expired), "--best", "%{y:.1f}"))
    caption = "Ids that got a row and ids that lost theirs, between two reports."
    figure = _figure(facts, data, "ids a thousand samples")
    return Chart("dynamic-turnover", "Ids that come and go", caption, figure, _HEIGHT)


def unknown_chart(facts: RunFacts) -> Chart | None:
    """The share of lookups whose id had no row and got none."""
    points = _points(facts, "unknown_share")
    if not points:
        return None
    figure = _figure(facts, [_line("without a row", points, "--train", "%{y:.1%}")], "lookups")
    figure["layout"]["yaxis"] |= {"tickformat": ".3~p"}
    caption = "Lookups of training that read the shared row, or zeros, since their id was not admitted."
    return Chart("dynamic-unknown", "Lookups without a row", caption, figure, _HEIGHT)


def _points(facts: RunFacts, key: str) -> Points:
    found = [(entry["samples"], (entry.get("dynamic") or {}).get(key)) for entry in facts.training]
    return [(samples, value) for samples, value in found if value is not None]


def _rates(facts: RunFacts, keys: tuple[str, ...]) -> Points:
    """Counts of some kinds a thousand samples."""
    points, before = [], 0
    for entry in facts.training:
        passed, before = entry["samples"] - before, entry["samples"]
        if entry.get("dynamic") and passed > 0:
            total = sum(entry["dynamic"].get(key, 0) for key in keys)
            points.append((entry["samples"], 1000 * total / passed))
    return points


def _line(name: str, points: Points, colour: str, shown: str) -> Figure:
    trace = line(name, thin(points), colour, markers=len(points) < 3)
    return {**trace, "hovertemplate": f"{shown}<extra>{name}</extra>"}


def _figure(facts: RunFacts, data: list[Figure], axis: str) -> Figure:
    layout = {
        "xaxis": samples_axis(facts.samples_per_epoch, facts.samples),
        "yaxis": {"title": {"text": axis}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}
