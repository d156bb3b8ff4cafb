"""The Explorer's pages: one predicted step, or a search with its best plans.

Everything is drawn from values, so that `megalith explore` can write a page without torch; only a search's
Pareto front needs plotly.js.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from megalith.core.config import to_yaml
from megalith.core.files import write_atomic
from megalith.core.units import format_count
from megalith.explore.job import Job, TransformerModel
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster
from megalith.report.explore.cluster_map import cluster_map
from megalith.report.explore.parts import (
    BREAKDOWN,
    MEMORY,
    pareto_chart,
    plans_html,
    sensitivities_html,
    stacked_html,
    tiles_html,
)
from megalith.report.explore.pipeline import legend_html, pipeline_pictures
from megalith.report.shell import code_html, figures_html, footer_html, html_page, section_html

if TYPE_CHECKING:
    from megalith.explore.search.result import SearchResult

_STYLE = Path(__file__).with_name("explore.css")


def write_prediction_report(job: Job, cluster: Cluster, prediction: Prediction, out: Path) -> None:
    """The page of one plan, whole or not at all; with `prediction.timeline` it shows the pipeline."""
    write_atomic(out, render_prediction(job, cluster, prediction))


def write_search_report(
    job: Job, cluster: Cluster, result: SearchResult, best: Prediction, out: Path
) -> None:
    """The page of a search; `best` is the first plan's prediction with its timeline."""
    write_atomic(out, render_search(job, cluster, result, best))


def render_prediction(job: Job, cluster: Cluster, prediction: Prediction) -> str:
    """The HTML of one predicted step."""
    title = job.name or getattr(job.model, "name", "") or "a plan"
    body = "\n".join(
        (
            _header(title, "Explorer · predicted step", job, cluster, prediction),
            tiles_html(job, cluster, prediction),
            *_plan_sections(job, cluster, prediction),
            section_html("Details", _details(job)),
            footer_html(),
        )
    )
    return html_page(title, body, (), _STYLE.read_text(encoding="utf-8"))


def render_search(job: Job, cluster: Cluster, result: SearchResult, best: Prediction) -> str:
    """The HTML of a search: its best plans, the first in full, and the Pareto front."""
    plan = result.best
    title = job.name or getattr(job.model, "name", "") or "a search"
    charts = [
        pareto_chart(
            f"pareto-{measure}",
            f"Step time against {name}",
            f"Plans that no other one beats in time, memory, bytes across sites and cost at once. {extra}",
            result.pareto,
            plan,
            measure,
        )
        for measure, name, extra in (
            (
                "cross_site",
                "bytes across sites",
                "Further left is faster, further down spares the long link.",
            ),
            ("memory", "memory", "Further down leaves more memory free."),
        )
    ]
    body = "\n".join(
        (
            _header(title, "Explorer · search", plan.job, cluster, best),
            tiles_html(plan.job, cluster, best),
            section_html("Why this plan", _sentences(result)),
            section_html("The best plans", plans_html(result.top)),
            *_plan_sections(plan.job, cluster, best),
            section_html("What a better part would bring", sensitivities_html(result.sensitivities)),
            section_html("Pareto front", figures_html(charts)),
            section_html("Details", _details(plan.job)),
            footer_html(),
        )
    )
    return html_page(title, body, charts, _STYLE.read_text(encoding="utf-8"))


def _header(title: str, eyebrow: str, job: Job, cluster: Cluster, prediction: Prediction) -> str:
    fits = (
        '<span class="chip good">fits</span>' if prediction.fits else '<span class="chip">does not fit</span>'
    )
    model = job.model
    if isinstance(model, TransformerModel):
        what = f"{model.layers} layers of {model.hidden:,}, sequences of {model.seq:,}"
        if model.experts:
            what += f", {model.experts_per_token} of {model.experts} experts"
    else:
        what = f"{model.tables:,} tables of {format_count(model.rows)} x {model.dim}"
    parallel = job.parallel
    used = prod((parallel.tp, parallel.cp, parallel.pp, parallel.dp)) if parallel else cluster.devices
    devices = f"{used:,} {cluster.device.name}"
    if used < cluster.devices:
        devices += f" of {cluster.devices:,}"
    name = model.name or model.kind
    return (
        f'<header><p class="eyebrow">Megalith · {escape(eyebrow)}</p>'
        f'<div class="title"><h1>{escape(title)}</h1>{fits}</div>'
        f'<p class="lead">{escape(name)}: {escape(what)} · {escape(devices)}'
        f"{' · ' + escape(cluster.name) if cluster.name else ''}</p></header>"
    )


def _plan_sections(job: Job, cluster: Cluster, prediction: Prediction) -> Sequence[str]:
    capacity = cluster.device.memory[0].bytes
    used = sum(prediction.memory.values())
    pair = stacked_html(
        "Where the step goes",
        "The slowest device, from the start of the step to its end.",
        prediction.breakdown,
        BREAKDOWN,
        prediction.step_seconds,
        "seconds",
    ) + stacked_html(
        "Memory of the fullest device",
        f"The bar is the device's memory{', which is not enough' if used > capacity else ''}.",
        prediction.memory,
        MEMORY,
        max(capacity, used),
        "bytes",
    )
    return (
        section_html("The step", f'<div class="pair">{pair}</div>'),
        section_html("The pipeline", _pipeline(prediction)),
        section_html("The cluster and what crosses it", cluster_map(cluster, job.parallel, prediction)),
    )


def _pipeline(prediction: Prediction) -> str:
    timeline = prediction.timeline
    if timeline is None or len(timeline.compute_seconds) < 2:
        return ""
    pictures = "".join(
        f'<figure class="card picture"><h3>{picture.title}</h3>'
        f"<figcaption>{escape(picture.caption)}</figcaption>"
        f'<div class="scroll">{picture.svg}</div></figure>'
        for picture in pipeline_pictures(timeline)
    )
    return legend_html(timeline) + pictures if pictures else ""


def _sentences(result: SearchResult) -> str:
    said = "".join(f"<li>{code_html(sentence)}</li>" for sentence in result.explanation)
    return f'<div class="card"><ul class="said">{said}</ul></div>' if said else ""


def _details(job: Job) -> str:
    return f'<details class="card"><summary>Job</summary><pre>{escape(to_yaml(job))}</pre></details>'
