"""What `megalith explore` prints for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from megalith.cli.output import print_table, say
from megalith.core.units import format_bandwidth, format_bytes, format_count, format_duration
from megalith.explore.job import Job, TransformerModel
from megalith.explore.plan_text import axes_of_levels, bound_name, plan_words, sensitivity_name
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster

if TYPE_CHECKING:
    from megalith.explore.compare import Comparison
    from megalith.explore.scenarios import ScenarioRow
    from megalith.explore.search.result import SearchResult
    from megalith.explore.validate import RowResult, ValidationReport

_BAR = 28
_PARETO_ROWS = 10


def show_prediction(job: Job, cluster: Cluster, prediction: Prediction) -> None:
    """How sure it is comes first, then the step."""
    step = prediction.step_seconds
    low, high = step * (1 - prediction.uncertainty), step * (1 + prediction.uncertainty)
    capacity = cluster.device.memory[0].bytes
    used = prediction.memory_bytes_per_device
    fits = "fits" if prediction.fits else "does not fit"
    batch = job.parallel.global_batch if job.parallel else job.global_batch or 0
    unit, each = ("tokens", job.model.seq) if isinstance(job.model, TransformerModel) else ("samples", 1)
    rows = [
        [
            "how sure",
            f"within {prediction.uncertainty:.1%}: {format_duration(low)} to {format_duration(high)}",
        ],
        ["step", format_duration(step)],
        ["MFU", f"{prediction.mfu:.1%} ({prediction.model_tflops_per_gpu:.4g} TFLOP/s a device)"],
        [
            "memory",
            f"{format_bytes(used)} of {format_bytes(capacity)} a device ({used / capacity:.0%}): {fits}",
        ],
        ["bound by", bound_name(prediction.bound_by)],
        ["rate", f"{format_count(batch * each / step)} {unit} a second"],
        ["micro-batch, recompute", f"{prediction.micro_batch}, {prediction.recompute}"],
    ]
    _facts(_title(job, cluster), rows)
    _shares("Where the step goes", prediction.breakdown, step, "seconds")
    _shares("Memory of the fullest device", prediction.memory, capacity, "bytes")
    _levels(job, cluster, prediction)


def show_search(job: Job, cluster: Cluster, result: SearchResult) -> None:
    best = result.best.prediction
    sure = f"within {best.uncertainty:.1%}, the typical error of such predictions"
    gap = "none: proved to be the best" if result.exact else f"at most {result.gap:.1%}"
    _facts(
        _title(result.best.job, cluster),
        [
            ["how sure", sure],
            ["best step", format_duration(best.step_seconds)],
            ["lower bound", format_duration(result.lower_bound_seconds)],
            ["left to gain", gap],
            [
                "plans",
                f"{result.examined:,} simulated, {format_count(result.pruned)} ruled out, "
                f"{format_count(result.unexamined)} left, in {result.seconds:.1f} s",
            ],
        ],
    )
    rows = []
    for place, plan in enumerate(result.top, start=1):
        found = plan.prediction
        slower = found.step_seconds / best.step_seconds - 1
        rows.append(
            [
                place,
                format_duration(found.step_seconds),
                f"{slower:+.1%}" if place > 1 else "",
                f"{found.mfu:.1%}",
                format_bytes(found.memory_bytes_per_device),
                format_bytes(plan.cross_site_bytes),
                bound_name(found.bound_by),
            ]
        )
    print_table("The best plans", ["", "step", "slower", "MFU", "memory", "across sites", "bound by"], rows)
    for place, plan in enumerate(result.top, start=1):
        changed = " It changes the mathematics of training." if plan.changes_mathematics else ""
        say((str(place), "bold"), f" {plan_words(plan.job)} ", (f"({plan.provenance})", "dim"), changed)
    say()
    for sentence in result.explanation:
        say(f"- {sentence}")
    say()
    print_table(
        "What a better part would bring",
        ["had one", "saved", "step"],
        [
            [sensitivity_name(one), f"{100 * one.gain:.1f}%", format_duration(one.step_seconds)]
            for one in sorted(result.sensitivities, key=lambda one: -one.gain)
        ],
    )
    _pareto(result)


def show_comparison(found: Comparison) -> None:
    one, other = found.one.prediction, found.other.prediction
    ratio = found.speed_up
    verdict = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times slower"
    sure = "more" if found.sure else "less"
    names = [found.one.name, found.other.name]
    print_table(
        f"{names[1]} is {verdict} as {names[0]}"
        if ratio >= 1
        else f"{names[1]} is {verdict} than {names[0]}",
        ["", *names],
        [
            ["step", format_duration(one.step_seconds), format_duration(other.step_seconds)],
            ["MFU", f"{one.mfu:.1%}", f"{other.mfu:.1%}"],
            ["memory", *(format_bytes(side.memory_bytes_per_device) for side in (one, other))],
            ["bound by", bound_name(one.bound_by), bound_name(other.bound_by)],
            ["how sure", f"within {one.uncertainty:.1%}", f"within {other.uncertainty:.1%}"],
            *(
                [name.replace("_", " "), format_duration(seconds[0]), format_duration(seconds[1])]
                for name, seconds in found.seconds_by_cause().items()
            ),
        ],
    )
    say(f"The two differ by {sure} than both may be wrong.")
    print_table(
        "What differs",
        ["", *names],
        [[one.key, _text(one.one), _text(one.other)] for one in found.differences],
    )
    if found.changes:
        print_table(
            f"From {names[0]} to {names[1]}, one part after the other",
            ["changed", "step", "saved"],
            [
                [" and ".join(one.sections), format_duration(one.step_seconds), _signed(one.saved_seconds)]
                for one in found.changes
            ],
        )


def show_validation(found: ValidationReport) -> None:
    def value(row: RowResult, amount: float) -> str:
        return format_duration(amount) if row.metric == "step_seconds" else f"{amount:.4g} TFLOP/s"

    usual = max(found.groups, key=lambda name: found.groups[name].rows if name != "all" else 0)
    print_table(
        "Every row (fitted: constants were fitted on it)",
        ["id", "measured", "predicted", "error", ""],
        [
            [
                row.id,
                value(row, row.measured),
                value(row, row.predicted),
                f"{row.error:+.1%}",
                ", ".join([row.group] * (row.group != usual) + ["fitted"] * row.fitted),
            ]
            for row in found.rows
        ],
    )
    kinds = dict.fromkeys((*(row.group for row in found.rows), *(row.source for row in found.rows), "all"))
    for title, groups in (("all rows", found.groups), ("rows that nothing was fitted on", found.held_out)):
        print_table(
            f"Absolute error, {title}",
            ["group", "rows", "mean", "median", "worst", "bias"],
            [
                [
                    name,
                    groups[name].rows,
                    f"{groups[name].mean:.1%}",
                    f"{groups[name].median:.1%}",
                    f"{groups[name].worst:.1%}",
                    f"{groups[name].bias:+.1%}",
                ]
                for name in kinds
                if name in groups
            ],
        )
    if found.bubbles:
        print_table(
            "Bubble rates of schedules",
            ["model", "schedule", "measured", "predicted", "off by"],
            [
                [one.model, one.schedule, f"{one.measured:.4f}", f"{one.predicted:.4f}", f"{one.error:+.4f}"]
                for one in found.bubbles
            ],
        )


def show_scenarios(rows: Sequence[ScenarioRow], parts: dict[str, dict[str, float | None]]) -> None:
    from megalith.explore.scenarios.suite import PAPER_OVER_PRODUCTION, PAPER_OVER_STATE_OF_THE_ART

    print_table(
        "How much faster the best plan is (gap: to the lower bound)",
        ["", "best s", "gap", "over production", "over CrossPipe"],
        [
            [
                row.name,
                f"{row.best.prediction.step_seconds:.4g}",
                f"{row.gap:.1%}",
                _gain(row.over_production),
                _gain(row.over_crosspipe),
            ]
            for row in rows
        ],
    )
    if parts:
        columns = list(next(iter(parts.values())))
        print_table(
            "Faster than production when one dimension alone is chosen, and all together",
            ["", *columns],
            [[name, *(_gain(found[column]) for column in columns)] for name, found in parts.items()],
        )
    for name, paper, found in (
        ("production", PAPER_OVER_PRODUCTION, [row.over_production for row in rows]),
        ("the state of the art", PAPER_OVER_STATE_OF_THE_ART, [row.over_crosspipe for row in rows]),
    ):
        gains = [gain for gain in found if gain is not None]
        if gains:
            best, middle = f"{max(gains):.2%}", f"{median(gains):.2%}"
            say(
                f"Over {name}: {best} at best, {middle} in the median of {len(gains)} "
                f"(ScaleAcross Explorer reports up to {paper:.2%})."
            )


def catalog_content(hardware: Sequence[Path]) -> dict[str, Any]:
    """Everything with a name, as one object."""
    from megalith.explore.load import job_names, scenario_names
    from megalith.explore.models import model_catalog
    from megalith.hardware.catalog import catalog

    known = catalog(*hardware)
    return {
        "models": model_catalog(),
        "devices": {
            name: {
                "flops": dict(device.flops),
                "memory_bytes": device.memory[0].bytes,
                "memory_bytes_per_second": device.memory[0].bytes_per_second,
            }
            for name, device in known.devices.items()
        },
        "links": {
            name: {"bytes_per_second": link.bytes_per_second, "latency_seconds": link.latency_seconds}
            for name, link in known.links.items()
        },
        "clusters": {
            name: {
                "device": spec.device,
                "devices": known.build(spec).devices,
                "levels": [f"{level.count} {level.name} over {level.link}" for level in spec.levels],
            }
            for name, spec in known.clusters.items()
        },
        "jobs": job_names(),
        "scenarios": scenario_names(),
    }


def show_catalog(content: dict[str, Any]) -> None:
    print_table(
        "Devices",
        ["", "TFLOP/s", "memory", "bandwidth"],
        [
            [
                name,
                ", ".join(f"{kind} {flops / 1e12:.3g}" for kind, flops in one["flops"].items()),
                format_bytes(one["memory_bytes"]),
                f"{one['memory_bytes_per_second'] / 1e9:.4g} GB/s",
            ]
            for name, one in content["devices"].items()
        ],
    )
    print_table(
        "Links",
        ["", "each way", "latency"],
        [
            [name, format_bandwidth(one["bytes_per_second"]), format_duration(one["latency_seconds"])]
            for name, one in content["links"].items()
        ],
    )
    print_table(
        "Clusters, from the inside out",
        ["", "devices", "levels"],
        [
            [name, f"{one['devices']:,}", f"{one['device']}: {'; '.join(one['levels'])}"]
            for name, one in content["clusters"].items()
        ],
    )
    for title in ("models", "jobs", "scenarios"):
        say((title.capitalize(), "bold"), f": {', '.join(content[title])}")


def _title(job: Job, cluster: Cluster) -> str:
    name = job.name or job.model.name or job.model.kind
    where = f" on {cluster.name}" if cluster.name else ""
    return f"{name}{where}: {cluster.devices:,} {cluster.device.name}"


def _facts(title: str, rows: Iterable[Sequence[str]]) -> None:
    print_table(title, ["", ""], rows, header=False)


def _shares(title: str, parts: dict[str, float], whole: float, unit: str) -> None:
    shown = format_duration if unit == "seconds" else format_bytes
    print_table(
        title,
        ["", unit, "share", ""],
        [
            [name.replace("_", " "), shown(value), f"{value / whole:.1%}", "█" * round(_BAR * value / whole)]
            for name, value in parts.items()
            if value > 0
        ],
    )


def _levels(job: Job, cluster: Cluster, prediction: Prediction) -> None:
    axes = axes_of_levels(job.parallel, cluster) if job.parallel else [{} for _ in cluster.levels]
    rows = []
    for level, crossing in zip(cluster.levels, axes, strict=True):
        link = level.link
        each_way = f"{format_bandwidth(link.bytes_per_second)}, {format_duration(link.latency_seconds)}"
        if level.oversubscription > 1:
            each_way += f", 1:{level.oversubscription:g}"
        rows.append(
            [
                f"{level.name} ({level.count})",
                link.name,
                each_way,
                " ".join(f"{axis} {count}" for axis, count in crossing.items()),
                format_bytes(prediction.level_bytes.get(level.name, 0.0)),
            ]
        )
    print_table("What crosses each level", ["level", "link", "each way", "crossed by", "bytes a step"], rows)


def _pareto(result: SearchResult) -> None:
    shown = list(result.pareto)
    # An even pick, both ends included: the front may have hundreds of plans.
    if len(shown) > _PARETO_ROWS:
        shown = [shown[round(at * (len(shown) - 1) / (_PARETO_ROWS - 1))] for at in range(_PARETO_ROWS)]
    picked = "" if len(shown) == len(result.pareto) else f" ({len(shown)} of {len(result.pareto)} plans)"
    print_table(
        f"Pareto front{picked}",
        ["step", "memory", "across sites", "cost", "plan"],
        [
            [
                format_duration(plan.prediction.step_seconds),
                format_bytes(plan.prediction.memory_bytes_per_device),
                format_bytes(plan.cross_site_bytes),
                f"{plan.cost_per_step:.3g}",
                plan_words(plan.job).split(";")[0],
            ]
            for plan in shown
        ],
    )


def _gain(gain: float | None) -> str:
    return "none fits" if gain is None else f"{100 * gain:.1f}%"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _signed(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0 else f"-{format_duration(-seconds)}"
