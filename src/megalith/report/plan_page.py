"""A sharding plan as one HTML page: the load of every worker, and where each table lies."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from megalith.core.errors import DataError
from megalith.core.files import write_atomic
from megalith.core.units import format_bytes, format_count, format_duration, format_parts
from megalith.report.charts.axes import byte_axis, duration_unit
from megalith.report.html_tables import NONE, table_html
from megalith.report.shell import (
    Chart,
    Figure,
    code_html,
    figures_html,
    footer_html,
    html_page,
    section_html,
    tile_html,
)
from megalith.sharding.plan import ShardingPlan, read_plan
from megalith.sharding.plan_estimate import LATENCY, PlanEstimate, one_worker_words

PHASES = {
    "input": ("--rank-3", "ids arrive"),
    "lookup": ("--train", "rows are read and pooled"),
    "exchange": ("--eval", "vectors go out, gradients come back"),
    "update": ("--rank-1", "rows are updated"),
}
LATENCY_WORDS = "collectives begin, vectors are copied to the output"
MOST_TABLES = 400
LABELLED_WORKERS = 8
"""Bars of more workers than this have their numbers on hover only."""


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
            _advice(plan, estimate),
            section_html("Load by worker", figures_html(charts)),
            section_html("What a step consists of", _parts(estimate)),
            section_html("Tables", _tables(plan, estimate)),
            footer_html(),
        )
    )
    return html_page(name, body, charts)


def _tiles(plan: ShardingPlan, estimate: PlanEstimate) -> str:
    step, parts = format_parts(estimate.step_parts())
    consists = " + ".join(
        f'<span class="part">{escape(name)} {seconds}</span>' for name, seconds in parts.items()
    )
    main = (
        '<div class="card tile main"><div class="name">Embedding part of a step</div>'
        f'<div class="value">{step}</div><div class="note">{consists}</div>'
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
            "Fullest worker",
            format_bytes(fullest),
            f"{_share(fullest / room)} of the {escape(first)} for tables",
        ),
        tile_html("Kinds of placement", str(len(kinds)), escape(", ".join(sorted(kinds)))),
        tile_html("Found by", escape(estimate.algorithm), f"in {estimate.planning_seconds:.1f} s"),
        tile_html(
            "Traffic", escape(plan.exchange.forward), f"forward, {escape(plan.exchange.backward)} backward"
        ),
    ]
    return f'<section class="tiles" aria-label="Headline numbers">{main}{"".join(tiles)}</section>'


def _share(value: float) -> str:
    return "less than 1%" if 0 < value < 0.01 else f"{value:.0%}"


def _advice(plan: ShardingPlan, estimate: PlanEstimate) -> str:
    if not estimate.one_worker_suffices:
        return ""
    return f'<p class="card advice">{code_html(one_worker_words(estimate, plan.world_size))}</p>'


def _seconds_chart(estimate: PlanEstimate) -> Chart:
    """Stacked phases of every worker."""
    workers = estimate.workers
    unit, scale = duration_unit(max(sum(worker.phases.values()) for worker in workers))
    data: list[Figure] = [
        {
            "type": "bar",
            "name": phase,
            "x": [worker.worker for worker in workers],
            "y": [scale * worker.phases[phase] for worker in workers],
            "marker": {"color": colour},
            "customdata": [format_duration(worker.phases[phase]) for worker in workers],
            "hovertemplate": f"worker %{{x}}, {phase}: %{{customdata}}<extra></extra>",
            **_bar_text([format_duration(worker.phases[phase]) for worker in workers], "inside"),
        }
        for phase, (colour, _) in PHASES.items()
        if any(worker.phases[phase] for worker in workers)
    ]
    layout = {
        "barmode": "stack",
        # Numbers that do not fit their bar are left out, not shrunk.
        "uniformtext": {"minsize": 10, "mode": "hide"},
        "bargap": 0.15 if len(workers) <= 64 else 0,
        "xaxis": _worker_axis(len(workers)),
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "legend": {"traceorder": "normal"},
    }
    caption = (
        "Time of each worker by phase. No worker goes on before the slowest has ended a phase; the table "
        "below says what each phase adds to a step."
    )
    return Chart("load", "Time", caption, {"data": data, "layout": layout}, 380)


def _bar_text(shown: list[str], position: str) -> Figure:
    """Values on the bars of a few workers."""
    if len(shown) > LABELLED_WORKERS:
        return {}
    return {"text": shown, "textposition": position, "textangle": 0, "cliponaxis": False}


def _worker_axis(workers: int) -> Figure:
    axis: Figure = {"title": {"text": "worker"}, "showgrid": False}
    return axis | {"dtick": 1} if workers <= 32 else axis


def _memory_chart(estimate: PlanEstimate) -> Chart:
    workers = estimate.workers
    colours = ("--train", "--eval", "--best")
    data: list[Figure] = [
        {
            "type": "bar",
            "name": tier,
            "x": [worker.worker for worker in workers],
            "y": [worker.memory_bytes[tier] for worker in workers],
            "marker": {"color": colour},
            "customdata": [format_bytes(worker.memory_bytes[tier]) for worker in workers],
            "hovertemplate": f"worker %{{x}}: %{{customdata}} of {tier}<extra></extra>",
            **_bar_text([format_bytes(worker.memory_bytes[tier]) for worker in workers], "outside"),
        }
        for tier, colour in zip(estimate.memory_capacity_bytes, colours, strict=False)
        if any(worker.memory_bytes[tier] for worker in workers)
    ]
    rooms = [f"{format_bytes(room)} of {tier}" for tier, room in estimate.memory_capacity_bytes.items()]
    layout = {
        "barmode": "group",
        "bargap": 0.15 if len(workers) <= 64 else 0,
        "xaxis": _worker_axis(len(workers)),
        "yaxis": byte_axis(max((size for trace in data for size in trace["y"]), default=0.0)),
    }
    caption = f"Rows with their optimizer state. A worker has {' and '.join(rooms)} for tables."
    return Chart("memory", "Memory", caption, {"data": data, "layout": layout}, 380)


def _parts(estimate: PlanEstimate) -> str:
    """The phases and the latency with what each adds to a step, and their sum."""
    step, parts = format_parts(estimate.step_parts())
    rows = []
    for name, phase in estimate.phases.items():
        hidden = "0, hidden by the pipeline" if phase.seconds else "0"
        row = [name, PHASES[name][1], parts.get(name, hidden), format_duration(phase.mean_seconds)]
        rows.append([*row, str(phase.worker)])
    rows.append([LATENCY, LATENCY_WORDS, parts[LATENCY], NONE, NONE])
    rows.append(["step", "the sum", step, NONE, NONE])
    columns = ["part", "what happens", "in a step", "mean of workers", "slowest worker"]
    return table_html(columns, rows, words=("what happens",))


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
        placed = f"{table.kind}{parts} on {where}"
        row = [table.table, placed, format_count(table.rows), str(table.dim), f"{table.lookups:.3g}"]
        rows.append([*row, format_bytes(table.bytes), table.tier, format_duration(table.seconds)])
    columns = ["table", "placement", "rows", "dim", "ids a sample", "bytes", "memory", "time of all workers"]
    more = (
        f'<p class="note-line">The {MOST_TABLES} costliest of {len(costliest):,}; the file has them all.</p>'
        if len(costliest) > MOST_TABLES
        else ""
    )
    return more + table_html(columns, rows, words=("placement",))
