"""What `megalith explore predict` prints for people; the search's table begins the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megalith.cli.output import print_table
from megalith.core.units import format_bandwidth, format_bytes, format_count, format_duration
from megalith.explore.job import Job, TransformerModel
from megalith.explore.plan_text import axes_of_levels, bound_name
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster

_BAR = 28
"""Characters of the longest bar."""


def show_prediction(job: Job, cluster: Cluster, prediction: Prediction) -> None:
    """The step, its parts and its memory, after how sure all of it is."""
    step = prediction.step_seconds
    low, high = prediction.interval
    capacity = cluster.device.memory[0].bytes
    used = prediction.memory_bytes_per_device
    fits = "fits" if prediction.fits else "does not fit"
    batch = job.parallel.global_batch if job.parallel else job.global_batch or 0
    unit, each = ("tokens", job.model.seq) if isinstance(job.model, TransformerModel) else ("samples", 1)
    rows = [
        ["how sure", f"80% interval {format_duration(low)} to {format_duration(high)}"],
        ["known from", prediction.interval_basis],
        ["stack", prediction.stack or "none"],
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
    print_facts(job_title(job, cluster), rows)
    _shares("Where the step goes", prediction.breakdown, step, "seconds")
    _shares("Memory of the fullest device", prediction.memory, capacity, "bytes")
    _levels(job, cluster, prediction)


def job_title(job: Job, cluster: Cluster) -> str:
    """The title above a job's figures: what runs where."""
    name = job.name or job.model.name or job.model.kind
    where = f" on {cluster.name}" if cluster.name else ""
    if job.cluster.sites and " + " in cluster.name:
        # Sites that differ: their name says how many of what each has.
        return f"{name}{where}"
    return f"{name}{where}: {cluster.devices:,} {cluster.device.name}"


def print_facts(title: str, rows: Iterable[Sequence[str]]) -> None:
    """A table of names and values without a header."""
    print_table(title, ["", ""], rows, header=False)


def _shares(title: str, parts: dict[str, float], whole: float, unit: str) -> None:
    """A table of parts with their shares of the whole as bars."""
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
    """A table of the cluster's levels with the axes and bytes that cross them."""
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
