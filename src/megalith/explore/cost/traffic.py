"""Bytes a step that leave the busiest member of each level of the cluster."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.cost.collectives import Group, dispatch_bytes, egress_bytes
from megalith.cost.memory import traffic_bytes, weight_bytes
from megalith.explore.cost.layers import expert_bytes, layer_groups
from megalith.explore.cost.replicas import (
    compression_factor,
    gathers_each_operation,
    reduces_each_micro_batch,
    replica_groups,
)
from megalith.explore.cost.stages import StageParameters
from megalith.explore.cost.transfers import StageTransfers
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.placement import outermost_level
from megalith.explore.plan import Plan


def level_bytes(
    plan: Plan, schedule: Schedule, held: Sequence[StageParameters], transfers: StageTransfers
) -> dict[str, float]:
    """Pipeline, data-, tensor- and expert-parallel bytes together, by level name."""
    levels = dict(transfers.level_bytes)
    for part, replicas in enumerate(replica_groups(plan)):
        most = max(sum(held[stage][part] for stage in stages) for stages in schedule.chunk_stages)
        _add_replicas(plan, replicas, most, levels)
    _add_layers(plan, levels)
    return levels


def _add_replicas(plan: Plan, replicas: Group, parameters: float, levels: dict[str, float]) -> None:
    """Bytes of one pipeline rank's gradients and parameters, as often as they are exchanged."""
    grads, weights = traffic_bytes(plan.precision) * parameters, weight_bytes(plan.precision) * parameters
    shrink = compression_factor(plan)
    outermost = outermost_level(replicas)
    reductions = plan.micro_batches if reduces_each_micro_batch(plan) else 1
    gathers = 2 * plan.micro_batches if gathers_each_operation(plan) else 1
    for index, span in enumerate(replicas):
        if span.ranks == 1:
            continue
        steps = plan.local_steps if index == outermost else 1
        if plan.sharding == "none":
            count = egress_bytes("all_reduce", replicas, index, grads, shrink) / steps
        elif plan.sharding == "hybrid" and index >= plan.shard_level:
            # Copies are whole inside a member: only gradients cross.
            count = reductions * egress_bytes("all_reduce", replicas, index, grads, shrink) / steps
        else:
            count = reductions * egress_bytes("reduce_scatter", replicas, index, grads, shrink) / steps
            count += gathers * egress_bytes("all_gather", replicas, index, weights)
        levels[plan.cluster.levels[index].name] += count * span.sharing


def _add_layers(plan: Plan, levels: dict[str, float]) -> None:
    """Tensor- and expert-parallel bytes of the layers that one device computes."""
    model, shape, groups = plan.transformer, plan.shape, layer_groups(plan)
    tokens = model.seq * shape.micro_batch // shape.cp
    layers = max(plan.layers_per_stage) * plan.parallel.vpp
    times = (3 if plan.recompute == "full" else 2) * plan.micro_batches * layers
    for index, span in enumerate(groups.tensor):
        if span.ranks > 1:
            size = 2.0 * tokens * model.hidden
            count = 2 * times * egress_bytes("all_reduce", groups.tensor, index, size) * span.sharing
            levels[plan.cluster.levels[index].name] += count
    if model.experts and shape.ep > 1:
        both_ways = sum(expert_bytes(model, shape, plan.precision))
        for index, span in enumerate(groups.experts):
            if span.ranks > 1:
                leaving = dispatch_bytes(
                    plan.fabric, groups.experts, index, both_ways, model.experts_per_token
                )
                levels[plan.cluster.levels[index].name] += times * span.sharing * leaving
