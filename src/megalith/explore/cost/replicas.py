"""Gradients and parameters among the data-parallel replicas of a stage, by the sharding mode."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import ceil

from megalith.cost.collectives import Group, collective_seconds, group_size
from megalith.cost.memory import gradient_bytes, traffic_bytes, weight_bytes
from megalith.explore.cost.stages import StageParameters
from megalith.explore.pipeline.costs import Collective, Each
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.placement import (
    boundary,
    expert_groups,
    group,
    outermost_level,
    split_group,
    stage_device,
)
from megalith.explore.plan import Plan

MAXIMUM_BUCKETS = 8
"""More buckets than this change nothing that matters and cost the simulation time."""
BUCKET_BYTES_A_RANK = 2e6
"""Least bytes of a bucket for each rank of its group: Megatron-Core grows buckets with the group, so that
latency stays small beside them."""
_COMPRESSED_BYTES = {"none": None, "bf16": 2.0, "int8": 1.0, "int4": 0.5}

Chunk = tuple[int, int]
"""(device, chunk of the model on it)."""


@dataclass(frozen=True, slots=True)
class ReplicaCollectives:
    """What the replicas of a pipeline exchange in a step."""

    gradient: dict[Chunk, Collective]
    parameters: dict[Chunk, Collective]
    after_step: dict[int, float]
    """Seconds by device of gradients that two pipeline ranks add up when all of them are there."""


def replica_groups(plan: Plan) -> tuple[Group, Group]:
    """The replicas of shared parameters and those of a routed expert."""
    shared = group(plan.parallel, plan.cluster, ("dp", "cp"))
    if not plan.transformer.experts:
        return shared, shared
    return shared, expert_groups(plan.parallel, plan.cluster).replicas


def replica_collectives(
    plan: Plan, schedule: Schedule, held: Sequence[StageParameters]
) -> ReplicaCollectives:
    """Reductions and gathers of every chunk, whose stages hold the parameters `held`; `plan_cost` hands them
    to the simulation."""
    shared_group, expert_group = replica_groups(plan)
    gradient: dict[Chunk, Collective] = {}
    parameters: dict[Chunk, Collective] = {}
    # Most stages are alike: (shared, routed) parameters and layers -> seconds.
    known: dict[tuple[float, float, int], tuple[float, float]] = {}
    for device, stages in enumerate(schedule.chunk_stages):
        link = replica_link(plan, shared_group, device)
        for chunk, stage in enumerate(stages):
            shared, routed = held[stage]
            layers = max(1, plan.layers_per_stage[stage % len(plan.layers_per_stage)])
            key = (shared, routed, layers)
            if key not in known:
                of_shared = exchange_seconds(plan, shared_group, shared, layers)
                of_experts = exchange_seconds(plan, expert_group, routed, layers)
                known[key] = (of_shared[0] + of_experts[0], of_shared[1] + of_experts[1])
            reduce_seconds, gather_seconds = known[key]
            if reduce_seconds:
                gradient[device, chunk] = _reduction(plan, link, reduce_seconds, shared + routed)
            if gather_seconds:
                parameters[device, chunk] = _gather(plan, link, gather_seconds)
    return ReplicaCollectives(gradient, parameters, _after_step(plan, schedule, held))


def _reduction(plan: Plan, link: Hashable, seconds: float, parameters: float) -> Collective:
    buckets = min(
        MAXIMUM_BUCKETS, max(1, ceil(traffic_bytes(plan.precision) * parameters / plan.bucket_bytes))
    )
    each: Each = "op" if reduces_each_micro_batch(plan) else "step"
    return Collective(link, seconds, 0.0, each, buckets if plan.overlap else 1)


def reduces_each_micro_batch(plan: Plan) -> bool:
    """Whether gradients are reduced after every micro-batch, as sharded gradients must be."""
    return plan.sharding in ("zero2", "zero3", "hybrid") and not _kept_whole(plan)


def gathers_each_operation(plan: Plan) -> bool:
    """Whether every forward and backward gathers its weights."""
    return plan.sharding in ("zero3", "hybrid") and not _kept_whole(plan)


def _kept_whole(plan: Plan) -> bool:
    return plan.stack.traits.keeps_gathered and plan.parallel.pp > 1


def _gather(plan: Plan, link: Hashable, seconds: float) -> Collective:
    each: Each = "op" if gathers_each_operation(plan) else "step"
    return Collective(link, seconds, 0.0, each, MAXIMUM_BUCKETS if plan.overlap else 1)


def _after_step(plan: Plan, schedule: Schedule, held: Sequence[StageParameters]) -> dict[int, float]:
    """Copies of one parameter on two pipeline ranks: a tied embedding, or one that multi-token prediction
    reads, and every stage in DualPipe."""
    parallel, cluster, model = plan.parallel, plan.cluster, plan.transformer
    seconds: dict[int, float] = {}
    if (model.tied_embeddings or model.mtp_layers) and parallel.pp > 1:
        first, last = schedule.placement[0], schedule.placement[-1]
        crossed = boundary(parallel, cluster, first, last)
        if crossed.level >= 0:
            size = model.vocab * model.hidden / parallel.tp * gradient_bytes(plan.precision)
            sum_seconds = size / plan.fabric.rate(crossed.level, crossed.sharing)
            seconds = {first: sum_seconds, last: sum_seconds}
    if schedule.streams > 1:
        for device, stages in enumerate(schedule.chunk_stages):
            crossed = boundary(parallel, cluster, device, parallel.pp - 1 - device)
            size = traffic_bytes(plan.precision) * sum(sum(held[stage]) for stage in stages)
            if crossed.level >= 0:
                sum_seconds = size / plan.fabric.rate(crossed.level, crossed.sharing)
                seconds[device] = seconds.get(device, 0.0) + sum_seconds
    return seconds


def exchange_seconds(plan: Plan, replicas: Group, parameters: float, layers: int = 0) -> tuple[float, float]:
    """Seconds of one reduction of gradients and one gather of parameters, by the sharding mode.

    `layers` is how many layers they belong to: sharded state is exchanged layer by layer, one collective
    after the other, so that each pays its latency, and other gradients go in buckets. 0: all in one
    collective, which is never slower.
    """
    if parameters == 0 or group_size(replicas) == 1:
        return 0.0, 0.0
    pieces = max(1, layers)
    if layers and (plan.sharding in ("none", "zero1") or not plan.overlap):
        least = max(plan.bucket_bytes, BUCKET_BYTES_A_RANK * group_size(replicas))
        pieces = max(1, int(traffic_bytes(plan.precision) * parameters / least)) if plan.overlap else 1
    reduce, gather = _piece_seconds(plan, replicas, parameters / pieces)
    return pieces * reduce, pieces * gather


def _piece_seconds(plan: Plan, replicas: Group, parameters: float) -> tuple[float, float]:
    fabric, steps = plan.fabric, plan.local_steps
    grads = traffic_bytes(plan.precision) * parameters
    weights = weight_bytes(plan.precision) * parameters
    shrink = compression_factor(plan)
    if plan.sharding == "none":
        if steps > 1:
            return _local_steps_seconds(plan, replicas, grads), 0.0
        return collective_seconds(fabric, "all_reduce", replicas, grads, shrink), 0.0
    if plan.sharding in ("zero1", "zero2", "zero3"):
        reduce = collective_seconds(fabric, "reduce_scatter", replicas, grads, shrink)
        return reduce / steps, collective_seconds(fabric, "all_gather", replicas, weights)
    inside, across = split_group(replicas, plan.shard_level)
    ranks = group_size(inside)
    reduce = collective_seconds(fabric, "reduce_scatter", inside, grads)
    reduce += collective_seconds(fabric, "all_reduce", across, grads / ranks, shrink) / steps
    return reduce, collective_seconds(fabric, "all_gather", inside, weights)


def _local_steps_seconds(plan: Plan, replicas: Group, grads: float) -> float:
    """DiLoCo: an all-reduce inside a site every step, one across sites once in `local_steps`."""
    inside, across = split_group(replicas, outermost_level(replicas))
    seconds = collective_seconds(plan.fabric, "all_reduce", inside, grads) if inside else 0.0
    ranks = max(1, group_size(inside))
    shrink = compression_factor(plan)
    return (
        seconds
        + collective_seconds(plan.fabric, "all_reduce", across, grads / ranks, shrink) / plan.local_steps
    )


def compression_factor(plan: Plan) -> float:
    """How many times fewer bytes compressed gradients take on the outermost level."""
    compressed = _COMPRESSED_BYTES[plan.compression]
    return max(1.0, traffic_bytes(plan.precision) / compressed) if compressed else 1.0


def replica_link(plan: Plan, replicas: Group, device: int) -> Hashable:
    """What a group's traffic queues on: its own lane of the outermost link that it crosses.

    A lane of its own, because links share fairly: a message between stages does not wait until a whole bucket
    of gradients is through, as it would in one queue. Other stages' groups on the same link have theirs: the
    rate of each is its share of the link already (`LevelSpan.sharing`)."""
    level = outermost_level(replicas)
    member = stage_device(plan.parallel, device) // plan.cluster.devices_within(level - 1)
    return (plan.cluster.levels[level].name, member, device, "replicas")
