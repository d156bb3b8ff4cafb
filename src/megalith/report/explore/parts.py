"""Parts of the Explorer's pages: tiles, stacked bars, the table of plans, sensitivities, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from megalith.core.units import format_bytes, format_count, format_duration
from megalith.explore.job import Job, TransformerModel
from megalith.explore.plan_text import bound_name, plan_summary, sensitivity_name
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster
from megalith.report.shell import Chart, tile_html

if TYPE_CHECKING:
    from megalith.explore.search.result import RankedPlan, Sensitivity

# Breakdown and memory parts: colour of the style, what it is.
BREAKDOWN = {
    "compute": ("--f", "matrix products and passes over memory"),
    "recompute": ("--cp", "forward work done again in the backward pass"),
    "tensor_parallel": ("--fb", "all-gathers and reduce-scatters within layers"),
    "context_parallel": ("--gather", "keys and values round the ring"),
    "expert_parallel": ("--ep", "tokens to their experts and back"),
    "pipeline_bubble": ("--soft", "waiting for work"),
    "pipeline_transfer": ("--send", "waiting for activations on their way"),
    "data_parallel": ("--b", "gradients and parameters not hidden behind compute"),
    "optimizer": ("--w", "updating weights"),
    "scale_loss": ("--soft", "stragglers and jitter of many devices"),
    "embedding": ("--cp", "looking rows up and updating them"),
    "all_to_all": ("--ep", "pooled vectors to the samples that need them, and back"),
}
MEMORY = {
    "weights": ("--f", "weights"),
    "gradients": ("--b", "gradients"),
    "optimizer": ("--w", "optimizer state and master weights"),
    "activations": ("--fb", "activations held for the backward pass"),
    "gathered": ("--f", "layers gathered ahead"),
    "framework": ("--soft", "context, NCCL buffers, fragmentation"),
    "margin": ("--soft", "kept free"),
}
_OTHER = "--best"


def tiles_html(job: Job, cluster: Cluster, prediction: Prediction) -> str:
    """The headline numbers of a step."""
    step = prediction.step_seconds
    low, high = prediction.interval
    capacity = cluster.device.memory[0].bytes
    used = prediction.memory_bytes_per_device
    parallel = job.parallel
    batch = parallel.global_batch if parallel else job.global_batch or 0
    if isinstance(job.model, TransformerModel):
        rate, unit = batch * job.model.seq / step, "Tokens a second"
    else:
        rate, unit = batch / step, "Samples a second"
    main = (
        f'<div class="card tile main"><div class="name">Predicted step</div>'
        f'<div class="value">{format_duration(step)}</div>'
        f'<div class="note">{format_duration(low)} to {format_duration(high)} in 80% of cases '
        f"({escape(prediction.interval_basis)}); see <code>explore validate</code></div></div>"
    )
    tiles = [
        tile_html("MFU", f"{prediction.mfu:.1%}", "of the devices' peak, recompute not counted"),
        tile_html(
            "TFLOP/s a device",
            f"{prediction.model_tflops_per_gpu:.4g}",
            f"{prediction.hardware_tflops_per_gpu:.4g} with recompute",
        ),
        tile_html("Bound by", escape(bound_name(prediction.bound_by)), "what a faster one would speed up"),
        tile_html(
            "Memory",
            format_bytes(used),
            f"{used / capacity:.0%} of {format_bytes(capacity)}, margin included",
        ),
        tile_html(unit, format_count(rate), f"batches of {batch:,}"),
        tile_html("Micro-batch", str(prediction.micro_batch), f"recompute {escape(prediction.recompute)}"),
    ]
    return f'<section class="tiles" aria-label="Headline numbers">{main}{"".join(tiles)}</section>'


def stacked_html(
    title: str,
    caption: str,
    parts: Mapping[str, float],
    known: Mapping[str, tuple[str, str]],
    whole: float,
    unit: str,
) -> str:
    """A stacked bar and its figures; `whole` is the length of the bar, `unit` is seconds or bytes."""
    shown = [(name, value) for name, value in parts.items() if value > 0]
    spans, rows = [], []
    for name, value in shown:
        colour, meaning = known.get(name, (_OTHER, ""))
        text = format_duration(value) if unit == "seconds" else format_bytes(value)
        label = name.replace("_", " ")
        share = value / whole if whole else 0.0
        style = f"width:{100 * share:.3f}%;background:var({colour})"
        spans.append(f'<span style="{style}" title="{escape(label)}: {text}"></span>')
        rows.append(
            f'<tr><td><i style="background:var({colour})"></i><span>{escape(label)}'
            f"<small>{escape(meaning) if meaning != label else ''}</small></span></td>"
            f"<td>{text}</td><td>{share:.1%}</td></tr>"
        )
    return (
        f'<figure class="card"><h3>{title}</h3><figcaption>{caption}</figcaption>'
        f'<div class="bar" role="img" aria-label="{escape(title)}">{"".join(spans)}</div>'
        f'<table class="parts"><tbody>{"".join(rows)}</tbody></table></figure>'
    )


def plans_html(plans: Sequence[RankedPlan]) -> str:
    """The Top plans; what changes the mathematics of training says so."""
    best = plans[0].prediction.step_seconds
    rows = []
    for rank, plan in enumerate(plans, start=1):
        prediction = plan.prediction
        mark = '<br><span class="chip">changes the mathematics</span>' if plan.changes_mathematics else ""
        slower = prediction.step_seconds / best - 1
        cells = [
            str(rank),
            format_duration(prediction.step_seconds),
            f"{slower:+.1%}" if rank > 1 else "",
            f"{prediction.mfu:.1%}",
            format_bytes(prediction.memory_bytes_per_device),
            format_bytes(plan.cross_site_bytes),
            escape(bound_name(prediction.bound_by)),
        ]
        rows.append(
            f"<tr{' class=best' if rank == 1 else ''}>"
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f'<td class="words">{escape(plan_summary(plan.job))}{mark}<br>'
            f'<span class="note-line">{escape(plan.provenance)}</span></td></tr>'
        )
    heads = ["", "Step", "", "MFU", "Memory", "Across sites", "Bound by"]
    head = (
        "".join(f'<th scope="col">{name}</th>' for name in heads) + '<th scope="col" class="words">Plan</th>'
    )
    return _table(head, "".join(rows))


def sensitivities_html(parts: Sequence[Sensitivity]) -> str:
    """What twice the bandwidth, memory or FLOP/s of each part of the cluster would save."""
    if not parts:
        return ""
    listed = sorted(parts, key=lambda part: -part.gain)
    most = max(0.001, listed[0].gain)
    rows = "".join(
        f"<tr><td>{escape(sensitivity_name(part))}</td><td>{100 * part.gain:.1f}%</td>"
        f'<td><span class="gain" style="width:{100 * max(0.0, part.gain) / most:.1f}%"></span></td>'
        f"<td>{format_duration(part.step_seconds)}</td></tr>"
        for part in listed
    )
    head = '<th scope="col">Had one</th><th scope="col">saved</th><th></th><th scope="col">step</th>'
    return _table(head, rows, "gains")


def pareto_chart(
    key: str, title: str, caption: str, plans: Sequence[RankedPlan], best: RankedPlan, measure: str
) -> Chart | None:
    """Step time against another measure; every point is a plan that no other beats on all counts."""
    if len(plans) < 2:
        return None
    units: dict[str, tuple[str, float]] = {
        "memory": ("GiB a device", 2**30),
        "cross_site": ("GiB across sites a step", 2**30),
        "cost": ("cost of a step", 1.0),
    }
    label, scale = units[measure]

    def value(plan: RankedPlan) -> float:
        amounts = {
            "memory": plan.prediction.memory_bytes_per_device,
            "cross_site": plan.cross_site_bytes,
            "cost": plan.cost_per_step,
        }
        return amounts[measure] / scale

    data: list[dict[str, Any]] = []
    for name, shown, colour, size, symbol in (
        ("plans", [plan for plan in plans if plan is not best], "--train", 9, "circle"),
        ("best", [best], "--eval", 15, "star"),
    ):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [plan.prediction.step_seconds for plan in shown],
                "y": [value(plan) for plan in shown],
                "customdata": [_wrapped(plan_summary(plan.job)) for plan in shown],
                "marker": {"color": colour, "size": size, "symbol": symbol},
                "hovertemplate": f"%{{x:.4g}} s, %{{y:.4g}} {label}<br>%{{customdata}}<extra></extra>",
            }
        )
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "seconds a step"}},
        "yaxis": {"title": {"text": label}, "rangemode": "tozero"},
    }
    return Chart(key, title, caption, {"data": data, "layout": layout}, 360)


def _wrapped(text: str) -> str:
    return "<br>".join(escape(part) for part in text.split("; "))


def _table(head: str, rows: str, kind: str = "plain") -> str:
    return (
        f'<div class="card scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
