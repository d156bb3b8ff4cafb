"""Layers, seconds and parameters of each virtual stage of a pipeline."""

from __future__ import annotations

from megalith.explore.cost.layers import (
    LayerGroups,
    MicroBatchSeconds,
    embedding_seconds,
    head_seconds,
    layer_groups,
    layer_seconds,
)
from megalith.explore.plan import Plan
from megalith.explore.workload import is_expert_layer, layer_weights

StageParameters = tuple[float, float]
"""(shared, routed experts') parameters of a virtual stage on one device."""


def stage_layers(plan: Plan) -> list[tuple[int, int]]:
    """(dense layers, expert layers) of each virtual stage."""
    model = plan.transformer
    counts, start = [], 0
    for layers in plan.layers_per_stage:
        expert = sum(1 for layer in range(start, start + layers) if is_expert_layer(model, layer))
        counts.append((layers - expert, expert))
        start += layers
    return counts


def stage_seconds(plan: Plan) -> tuple[MicroBatchSeconds, ...]:
    """Seconds of every virtual stage for one micro-batch."""
    groups = layer_groups(plan)
    # Most stages are alike: (dense layers, expert layers, is first, is last) -> seconds.
    known: dict[tuple[int, int, bool, bool], MicroBatchSeconds] = {}
    counts = stage_layers(plan)
    result = []
    for index, (dense, expert) in enumerate(counts):
        key = (dense, expert, index == 0, index == len(counts) - 1)
        if key not in known:
            known[key] = _stage_seconds(plan, groups, *key)
        result.append(known[key])
    return tuple(result)


def _stage_seconds(
    plan: Plan, groups: LayerGroups, dense: int, expert: int, first: bool, last: bool
) -> MicroBatchSeconds:
    model, shape, precision = plan.transformer, plan.shape, plan.precision
    # Host work for a micro-batch: half with the forward, half with the backward, spread over a device's
    # chunks.
    host = 0.5 * plan.constants.micro_batch_seconds / plan.parallel.vpp
    total = MicroBatchSeconds(forward=host, backward_input=host)
    if dense:
        total = total.plus(layer_seconds(model, shape, False, precision, plan.recompute, groups), dense)
    if expert:
        total = total.plus(layer_seconds(model, shape, True, precision, plan.recompute, groups), expert)
    if first:
        total = total.plus(embedding_seconds(model, shape, precision, groups))
    if last:
        total = total.plus(head_seconds(model, shape, precision, groups))
    return total


def stage_parameters(plan: Plan) -> list[StageParameters]:
    """Parameters of each virtual stage, as tensor and expert parallelism cut them."""
    model, shape = plan.transformer, plan.shape
    dense = layer_weights(model, False, shape.tp, shape.ep)
    expert = layer_weights(model, True, shape.tp, shape.ep) if model.experts else (0.0, 0.0)
    vocabulary = model.vocab * model.hidden / shape.tp
    counts = stage_layers(plan)
    result = []
    for index, (dense_layers, expert_layers) in enumerate(counts):
        shared = dense_layers * dense[0] + expert_layers * expert[0]
        # A tied embedding is on the first and on the last stage; once where they are the same stage.
        if index == 0:
            shared += vocabulary
        if index == len(counts) - 1 and not (model.tied_embeddings and len(counts) == 1):
            shared += vocabulary
        result.append((shared, dense_layers * dense[1] + expert_layers * expert[1]))
    return result
