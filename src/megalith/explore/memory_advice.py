"""What to say of a plan that does not fit in memory: what is too large, and the nearest change that fits."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from megalith.core.errors import ConfigError, PlanError
from megalith.core.units import format_bytes
from megalith.cost.memory import state_bytes
from megalith.explore.cost.memory import PeakMemory, memory_of
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.placement import devices_needed
from megalith.explore.plan import Plan, make_plan
from megalith.explore.workload import model_parameters

Settings = dict[str, Any]
"""Dotted key of a job -> value, such as {"parallel.micro_batch": 1}."""


def memory_shortfall(plan: Plan, memory: PeakMemory) -> str:
    """What the fullest device would have to hold, and what it has."""
    device = plan.cluster.device
    listed = ", ".join(f"{name} {format_bytes(count)}" for name, count in memory.by_use().items())
    return (
        f"The plan needs {format_bytes(memory.total)} on a device and {device.name} has "
        f"{format_bytes(device.bytes)} ({listed})"
    )


def nearest_fit(job: Job, plan: Plan) -> str:
    """The change to offer, as settings that a job takes; how many devices it would need if none helps."""
    for change in _changes(plan):
        changed = _applied(job, plan, change)
        micro_batch = changed.parallel.micro_batch or 1 if changed.parallel else 1
        try:
            tried = make_plan(changed, micro_batch, changed.training.recompute or "full")
        except (PlanError, ConfigError):
            continue
        if memory_of(tried).fits(tried.cluster.device.bytes):
            return "take " + " ".join(f"{key}={value}" for key, value in change.items())
    whole = state_bytes(model_parameters(plan.transformer), plan.precision, "none", 1).total
    least = ceil(whole / (0.8 * plan.cluster.device.bytes))
    here = plan.cluster.devices
    if least > here:
        return f"take a cluster of at least {least} such devices ({here} are here), or a smaller model"
    return "take more pipeline stages or shorter sequences, or let `megalith explore search` find a plan"


def _changes(plan: Plan) -> Iterator[Settings]:
    """Changes that need less memory, the mildest first."""
    parallel, shape = plan.parallel, plan.shape
    recompute: list[Settings] = [{}]
    if plan.recompute == "none" and not shape.flash:
        recompute.append({"training.recompute": "selective"})
    if plan.recompute != "full":
        recompute.append({"training.recompute": "full"})
    sizes: list[Settings] = [{}]
    sizes += [
        {"parallel.micro_batch": size}
        for size in (shape.micro_batch // 2, 1)
        if 1 <= size < shape.micro_batch
    ]
    modes = ("none", "zero1", "zero2", "zero3")
    stronger = modes[modes.index(plan.sharding) + 1 :] if plan.sharding in modes and plan.shards > 1 else ()
    shardings: list[Settings] = [{}, *({"parallel.sharding": mode} for mode in stronger)]
    milder = [{**mode, **size, **sharding} for sharding in shardings for size in sizes for mode in recompute]
    yield from sorted((change for change in milder if change), key=len)
    full: Settings = {"training.recompute": "full"} if plan.recompute != "full" else {}
    small: Settings = {"parallel.micro_batch": 1} if shape.micro_batch != 1 else {}
    for layout in _larger(parallel, plan.transformer, plan.cluster.devices):
        for extra in ({}, full, {**full, **small}):
            yield {**layout, **extra}


def _larger(parallel: Parallel, model: TransformerModel, devices: int) -> Iterator[Settings]:
    """More stages or more tensor parallelism, on the same devices if fewer replicas can give them up."""
    for axis, limit in (("pp", model.layers // parallel.vpp), ("tp", model.heads)):
        now = getattr(parallel, axis)
        for value in range(2 * now, limit + 1, now):
            if limit % value:
                continue
            change: Settings = {f"parallel.{axis}": value}
            times = value // now
            if devices_needed(parallel) * times > devices:
                if parallel.dp % times:
                    continue
                change["parallel.dp"] = parallel.dp // times
            yield change


def _applied(job: Job, plan: Plan, change: Settings) -> Job:
    """The job as planned, with the change."""
    sections: dict[str, dict[str, Any]] = {
        "parallel": {"micro_batch": plan.shape.micro_batch, "sharding": plan.sharding},
        "training": {"recompute": plan.recompute},
    }
    for key, value in change.items():
        section, _, name = key.partition(".")
        sections[section][name] = value
    assert job.parallel is not None
    return job.model_copy(
        update={
            "parallel": job.parallel.model_copy(update=sections["parallel"]),
            "training": job.training.model_copy(update=sections["training"]),
        }
    )
