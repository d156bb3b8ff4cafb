"""A sharding plan as one HTML page: the load of every worker, and where each table lies."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError
from megalith.core.files import write_atomic
from megalith.core.units import format_bytes, format_count, format_duration
from megalith.report.shell import (
    Chart,
    Figure,
    figures_html,
    footer_html,
    html_page,
    section_html,
    tile_html,
)
from megalith.sharding.plan import ShardingPlan, read_plan
from megalith.sharding.plan_estimate import PlanEstimate

PHASES = {
    "input": ("--rank-3", "ids arrive"),
    "lookup": ("--train", "rows are read and pooled"),
    "exchange": ("--eval", "vectors go out, gradients come back"),
    "update": ("--rank-1", "rows are updated"),
}
MOST_TABLES = 400
_STYLE = "td.words, th.words { text-align: left; white-space: normal; }"


def write_plan_report(plan: Path, out: Path) -> dict[str, Any]:
    """Draws a plan file, whole or not at all; returns its headline."""
    made = read_plan(plan)
    estimate = made.estimate
    if estimate is None:
        raise DataError(f"{plan} has no estimate to draw; make it with `megalith plan RECIPE --out {plan}`.")
    try:
        page = render_plan(made, estimate, plan.stem)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, ArithmeticError) as error:
        raise DataError(
            f"{plan} has an estimate that cannot be drawn ({type(error).__name__}: {error}); make it with "
            f"`megalith plan RECIPE --out {plan}`."
        ) from error
    headline = {
        "step_seconds": estimate.step_seconds,
        "lower_bound_seconds": estimate.lower_bound_seconds,
        "gap": estimate.gap,
        "bound_by": estimate.bound_by,
    }
    write_atomic(out, page)
    return headline


def render_plan(plan: ShardingPlan, estimate: PlanEstimate, name: str) -> str:
    """The complete HTML."""
    charts = [_seconds_chart(estimate), _memory_chart(estimate)]
    header = (
        '<header><p class="eyebrow">Megalith · sharding plan</p>'
        f'<div class="title"><h1>{escape(name)}</h1></div>'
        f'<p class="lead">{len(plan.placements):,} tables on {plan.world_size:,} '
        f"{escape(estimate.device)}, {plan.workers_per_node} a node · {escape(estimate.hardware)}</p>"
        "</header>"
    )
    body = "\n".join(
        (
            header,
            _tiles(plan, estimate),
            section_html("Load by worker", figures_html(charts)),
            section_html("Phases", _phases(estimate)),
            section_html("Tables", _tables(plan, estimate)),
            footer_html(),
        )
    )
    return html_page(name, body, charts, _STYLE)


def _tiles(plan: ShardingPlan, estimate: PlanEstimate) -> str:
    main = (
        '<div class="card tile main"><div class="name">Embedding part of a step</div>'
        f'<div class="value">{format_duration(estimate.step_seconds)}</div>'
        f'<div class="note">at most {estimate.gap:.2%} above the best possible, '
        f"{format_duration(estimate.lower_bound_seconds)}</div></div>"
    )
    first = estimate.first_tier
    fullest = max(worker.memory_bytes[first] for worker in estimate.workers)
    room = estimate.memory_capacity_bytes[first]
    kinds = {placement.kind for placement in plan.placements}
    tiles = [
        tile_html("Bound by", escape(estimate.bound_by), "what a faster one would speed up"),
        tile_html("Imbalance", f"{estimate.imbalance:.1%}", "slowest worker of each phase over the mean"),
        tile_html(
            "Fullest worker", format_bytes(fullest), f"{fullest / room:.0%} of the {escape(first)} for tables"
        ),
        tile_html("Kinds of placement", str(len(kinds)), escape(", ".join(sorted(kinds)))),
        tile_html("Found by", escape(estimate.algorithm), f"in {estimate.planning_seconds:.1f} s"),
        tile_html(
            "Traffic", escape(plan.exchange.forward), f"forward, {escape(plan.exchange.backward)} backward"
        ),
    ]
    return f'<section class="tiles" aria-label="Headline numbers">{main}{"".join(tiles)}</section>'


def _seconds_chart(estimate: PlanEstimate) -> Chart:
    """Stacked phases of every worker."""
    workers = estimate.workers
    data: list[Figure] = [
        {
            "type": "bar",
            "name": phase,
            "x": [worker.worker for worker in workers],
            "y": [1e3 * worker.phases[phase] for worker in workers],
            "marker": {"color": colour},
            "hovertemplate": f"worker %{{x}}, {phase}: %{{y:.3~g}} ms<extra></extra>",
        }
        for phase, (colour, _) in PHASES.items()
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.15 if len(workers) <= 64 else 0,
        "xaxis": {"title": {"text": "worker"}, "showgrid": False},
        "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
        "legend": {"traceorder": "normal"},
    }
    caption = (
        "Seconds of each worker by phase. Every phase ends when its slowest worker does, so a step takes the "
        "highest of each colour."
    )
    return Chart("load", "Seconds", caption, {"data": data, "layout": layout}, 380)


def _memory_chart(estimate: PlanEstimate) -> Chart:
    workers = estimate.workers
    colours = ("--train", "--eval", "--best")
    data: list[Figure] = [
        {
            "type": "bar",
            "name": tier,
            "x": [worker.worker for worker in workers],
            "y": [worker.memory_bytes[tier] / 2**30 for worker in workers],
            "marker": {"color": colour},
            "hovertemplate": f"worker %{{x}}: %{{y:.3~g}} GiB of {tier}<extra></extra>",
        }
        for tier, colour in zip(estimate.memory_capacity_bytes, colours, strict=False)
        if any(worker.memory_bytes[tier] for worker in workers)
    ]
    rooms = [f"{format_bytes(room)} of {tier}" for tier, room in estimate.memory_capacity_bytes.items()]
    layout = {
        "barmode": "group",
        "bargap": 0.15 if len(workers) <= 64 else 0,
        "xaxis": {"title": {"text": "worker"}, "showgrid": False},
        "yaxis": {"title": {"text": "GiB"}, "rangemode": "tozero"},
    }
    caption = f"Rows with their optimizer state. A worker has {' and '.join(rooms)} for tables."
    return Chart("memory", "Memory", caption, {"data": data, "layout": layout}, 380)


def _phases(estimate: PlanEstimate) -> str:
    rows = "".join(
        f"<tr><td>{name}</td><td class='words'>{PHASES[name][1]}</td>"
        f"<td>{format_duration(phase.seconds)}</td><td>{format_duration(phase.mean_seconds)}</td><td>{phase.worker}</td></tr>"
        for name, phase in estimate.phases.items()
    )
    return (
        '<div class="card scroll"><table><thead><tr><th>phase</th><th class="words"></th><th>slowest</th>'
        f"<th>mean</th><th>slowest worker</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _tables(plan: ShardingPlan, estimate: PlanEstimate) -> str:
    placements = {placement.table: placement for placement in plan.placements}
    costliest = sorted(estimate.tables, key=lambda table: -table.seconds)
    rows = []
    for table in costliest[:MOST_TABLES]:
        workers = placements[table.table].workers
        where = ", ".join(map(str, workers)) if len(workers) <= 8 else f"{len(workers)} workers"
        if len(workers) == plan.world_size > 1:
            where = "all"
        parts = f" in {table.columns}" if table.columns > 1 else ""
        rows.append(
            f"<tr><td>{escape(table.table)}</td><td class='words'>{table.kind}{parts} on {where}</td>"
            f"<td>{format_count(table.rows)}</td><td>{table.dim}</td><td>{table.lookups:.3g}</td>"
            f"<td>{format_bytes(table.bytes)}</td><td>{escape(table.tier)}</td>"
            f"<td>{format_duration(table.seconds)}</td></tr>"
        )
    more = (
        f'<p class="note-line">The {MOST_TABLES} costliest of {len(costliest):,}; the file has them all.</p>'
        if len(costliest) > MOST_TABLES
        else ""
    )
    return (
        f'<div class="card scroll">{more}<table><thead><tr><th>table</th><th class="words">placement</th>'
        "<th>rows</th><th>dim</th><th>ids a sample</th><th>bytes</th><th>memory</th><th>seconds in all</th>"
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
