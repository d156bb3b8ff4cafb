"""What a better part of the cluster would bring: links of each level, devices.

Each quantity is doubled (latency halved) and the Top plans are predicted again: the best of them may change,
and which one it is belongs to the answer. A search from scratch could find a little more; this is a lower
estimate of the gain, for the price of a few predictions. A gain below zero is no mistake: an order of
operations that was chosen for slow links may be the wrong one for quick ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from megalith.explore.candidates import RECOMPUTE
from megalith.explore.cost.memory import memory_of
from megalith.explore.job import Job, TransformerModel
from megalith.explore.plan import Plan, make_plan
from megalith.explore.predict import predict_plan
from megalith.explore.search.result import RankedPlan, Sensitivity
from megalith.hardware.cluster import Cluster, Device


def sensitivities(top: Sequence[RankedPlan], cluster: Cluster) -> tuple[Sensitivity, ...]:
    """One entry for each part and quantity; gains are against the best plan as it stands."""
    step = top[0].prediction.step_seconds
    changes: list[Sensitivity] = []
    if not isinstance(top[0].job.model, TransformerModel):
        return ()
    for part, quantity, factor, better in better_clusters(cluster):
        seconds = [predict_plan(_on(plan.job, better)).step_seconds for plan in top]
        best = min(range(len(seconds)), key=seconds.__getitem__)
        changes.append(Sensitivity(part, quantity, factor, seconds[best], 1 - seconds[best] / step, best))
    return tuple(changes)


def better_clusters(cluster: Cluster) -> Iterator[tuple[str, str, float, Cluster]]:
    """(part, quantity, factor, the cluster with it)."""
    for index, level in enumerate(cluster.levels):
        if level.count == 1:
            continue
        link = level.link
        faster = replace(
            link,
            bytes_per_second=2 * link.bytes_per_second,
            flow_bytes_per_second=2 * link.flow_bytes_per_second,
        )
        nearer = replace(link, latency_seconds=link.latency_seconds / 2)
        for quantity, factor, better in (("bandwidth", 2.0, faster), ("latency", 0.5, nearer)):
            levels = list(cluster.levels)
            levels[index] = replace(level, link=better)
            yield f"level:{level.name}", quantity, factor, replace(cluster, levels=tuple(levels))
    device = cluster.device
    for quantity, changed in (
        ("flops", replace(device, flops={name: 2 * rate for name, rate in device.flops.items()})),
        ("memory", _with_memory(device, size=2, rate=1)),
        ("memory_bandwidth", _with_memory(device, size=1, rate=2)),
    ):
        yield f"device:{device.name}", quantity, 2.0, replace(cluster, device=changed)


def _with_memory(device: Device, size: int, rate: int) -> Device:
    first = device.memory[0]
    larger = replace(first, bytes=size * first.bytes, bytes_per_second=rate * first.bytes_per_second)
    return replace(device, memory=(larger, *device.memory[1:]))


def _on(job: Job, cluster: Cluster) -> Plan:
    """The plan on another cluster, with the least recompute that fits there."""
    assert job.parallel is not None
    modes = (job.training.recompute,) if job.training.recompute else RECOMPUTE
    for recompute in modes:
        plan = make_plan(job, job.parallel.micro_batch or 1, recompute)
        plan = replace(plan, cluster=cluster, fabric=replace(plan.fabric, cluster=cluster))
        if memory_of(plan).fits(cluster.device.bytes):
            break
    return plan
