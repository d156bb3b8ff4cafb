"""Short texts for tables and pages: a plan in one line, what bounds its step, what crosses each level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megalith.explore.job import Job, Parallel
from megalith.explore.placement import axis_pieces
from megalith.hardware.cluster import Cluster

if TYPE_CHECKING:
    from megalith.explore.search.result import Sensitivity


def bound_name(bound_by: str) -> str:
    """compute, memory-bandwidth, bubble or link:zone, as people say it."""
    kind, _, level = bound_by.partition(":")
    return f"links of {level}" if level else kind.replace("-", " ")


def plan_summary(job: Job) -> str:
    """A plan in one line: what differs from plan to plan."""
    parallel = job.parallel
    if parallel is None:
        return ""
    sizes = [
        f"{axis}={getattr(parallel, axis)}"
        for axis in ("tp", "cp", "ep", "pp", "vpp", "dp")
        if getattr(parallel, axis) > 1
    ]
    training, network = job.training, job.network
    words = [" ".join(sizes) or "dp=1", f"{training.schedule}"]
    if training.extra_in_flight:
        words[-1] += f" +{training.extra_in_flight} in flight"
    words.append(f"placement {' '.join(parallel.placement)}")
    if parallel.sharding != "none":
        words.append(
            parallel.sharding + (f" within {parallel.shard_within}" if parallel.shard_within else "")
        )
    if training.recompute and training.recompute != "none":
        words.append(f"{training.recompute} recompute")
    words.append(f"{network.routing}, {network.collectives} collectives")
    if network.multipath > 1:
        words[-1] += f", {network.multipath} paths"
    if training.compression != "none":
        words.append(f"{training.compression} gradients across sites")
    if training.local_steps > 1:
        words.append(f"{training.local_steps} local steps")
    return "; ".join(words)


def axes_of_levels(parallel: Parallel, cluster: Cluster) -> list[dict[str, int]]:
    """For each level, the axes that its members differ in and how often, fastest first.

    >>> two = Cluster("", device, (Level("node", 8, link), Level("zone", 4, link)))  # doctest: +SKIP
    >>> axes_of_levels(Parallel(tp=8, dp=4, global_batch=4), two)  # doctest: +SKIP
    [{'tp': 8}, {'dp': 4}]
    """
    levels = []
    for index in range(len(cluster.levels)):
        inner, outer = cluster.devices_within(index - 1) if index else 1, cluster.devices_within(index)
        axes: dict[str, int] = {}
        for piece in axis_pieces(parallel):
            low = max(1, inner // piece.stride)
            high = max(1, min(piece.count, outer // piece.stride))
            if high > low:
                axes[piece.axis] = axes.get(piece.axis, 1) * (high // low)
        levels.append(axes)
    return levels


def sensitivity_name(sensitivity: Sensitivity) -> str:
    """The improvement that a sensitivity is about, such as twice the bandwidth of links of zone."""
    kind, _, name = sensitivity.part.partition(":")
    improvement = {
        "bandwidth": "twice the bandwidth",
        "latency": "half the latency",
        "flops": "twice the FLOP/s",
        "memory": "twice the memory",
        "memory_bandwidth": "twice the memory bandwidth",
    }.get(sensitivity.quantity, f"{sensitivity.factor:g} x {sensitivity.quantity}")
    return f"{improvement} of {'links of ' if kind == 'level' else ''}{name or kind}"
