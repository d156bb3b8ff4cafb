"""The cluster as a map: a row for each level from the outermost in, its members, the link that joins them,
and which axes of the plan cross it with how many bytes."""

from __future__ import annotations

from html import escape
from math import prod

from megalith.core.units import format_bandwidth, format_bytes, format_duration
from megalith.explore.job import Parallel
from megalith.explore.plan_text import axes_of_levels
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster, Level

_SHOWN = 16
_LABELLED = 8
AXIS_NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "dp": "data parallel",
    "pp": "pipeline stages",
    "ep": "expert parallel",
}


def cluster_map(cluster: Cluster, parallel: Parallel | None, prediction: Prediction | None) -> str:
    """The card with a row for each level, from the outermost in."""
    axes = axes_of_levels(parallel, cluster) if parallel else [{} for _ in cluster.levels]
    rows = [_row(cluster, index, axes[index], prediction) for index in reversed(range(len(cluster.levels)))]
    used = {axis for level in axes for axis in level}
    keys = "".join(
        f'<span class="key"><i class="a-{axis}"></i>{axis}: {name}</span>'
        for axis, name in AXIS_NAMES.items()
        if axis in used
    )
    legend = f'<p class="legend">{keys}</p>' if keys else ""
    return f'<div class="card">{legend}{"".join(rows)}</div>'


def _row(cluster: Cluster, index: int, axes: dict[str, int], prediction: Prediction | None) -> str:
    level = cluster.levels[index]
    inner = cluster.levels[index - 1].name if index else cluster.device.name
    total = prod(outer.count for outer in cluster.levels[index + 1 :])
    many = f" · {total:,} of them" if total > 1 else ""
    return (
        f'<div class="level"><div class="who">{escape(level.name)}'
        f"<small>{level.count} x {escape(inner)}{many}</small></div>"
        f'<div><div class="members{" several" if len(axes) > 1 else ""}">{_members(level, axes)}</div>'
        '<div class="wire"></div>'
        f'<div class="facts">{_facts(level, axes, prediction)}</div></div></div>'
    )


def _members(level: Level, axes: dict[str, int]) -> str:
    shown = min(level.count, _SHOWN)
    used = prod(axes.values())
    colours = list(axes)
    if len(colours) > 1:
        share = 100 / len(colours)
        stops = ", ".join(
            f"var(--{axis}) {share * index:.0f}% {share * (index + 1):.0f}%"
            for index, axis in enumerate(colours)
        )
        style = f' style="background: linear-gradient(90deg, {stops})"'
    else:
        style = ""
    blocks = []
    for member in range(shown):
        if member >= used and used < level.count:
            blocks.append("<b>idle</b>" if shown <= _LABELLED else "<b></b>")
            continue
        label: list[str] = []
        left = member
        for axis, count in axes.items():
            left, coordinate = divmod(left, count)
            label.append(f"{axis} {coordinate}")
        text = " · ".join(label) if shown <= _LABELLED else ""
        name = f' class="a-{colours[0]}"' if len(colours) == 1 else style
        blocks.append(f"<b{name}>{text}</b>")
    more = level.count - shown
    return "".join(blocks) + (f'<span class="more">and {more:,} more</span>' if more else "")


def _facts(level: Level, axes: dict[str, int], prediction: Prediction | None) -> str:
    link = level.link
    speed, delay = format_bandwidth(link.bytes_per_second), format_duration(link.latency_seconds)
    facts = [f"{escape(link.name)}: {speed}, {delay}"]
    if level.oversubscription > 1:
        facts.append(f"oversubscribed 1:{level.oversubscription:g}")
    if level.loss:
        facts.append(f"{level.loss:.2g} of packets lost")
    crossing = " ".join(f'<span class="axis a-{axis}">{axis} {count}</span>' for axis, count in axes.items())
    facts.append(f"crossed by {crossing}" if crossing else "crossed by nothing")
    if prediction is not None and level.name in prediction.level_bytes:
        sent = prediction.level_bytes[level.name]
        facts.append(f"{format_bytes(sent)} a step from the busiest member" if sent else "no bytes")
    return "".join(f"<span>{fact}</span>" for fact in facts)
