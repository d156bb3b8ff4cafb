"""Lines of points, as plotly.js draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megalith.report.shell import Figure

MAX_POINTS = 1500


def thin(points: Sequence[tuple[float, Any]], most: int = MAX_POINTS) -> list[tuple[float, Any]]:
    """At most about `most` points, evenly picked, the last one always among them."""
    stride = -(-len(points) // most) or 1
    kept = list(points[::stride])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def line(name: str, points: Sequence[tuple[float, Any]], colour: str, markers: bool) -> Figure:
    """One line through some points, with or without markers."""
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
