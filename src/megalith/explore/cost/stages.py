"""Layers, seconds and parameters of each virtual stage of a pipeline."""

from __future__ import annotations

from megalith.explore.cost.activations import layer_bytes
from megalith.explore.cost.layers import (
    LayerGroups,
    MicroBatchSeconds,
    embedding_seconds,
    head_seconds,
    layer_groups,
    layer_seconds,
    mtp_seconds,
)
from megalith.explore.plan import Plan
from megalith.explore.workload import LayerKind, layer_kind, layer_kinds, layer_weights, mtp_weights
from megalith.hardware.cluster import Device

HOST_BYTES_PER_SECOND = 2.5e10
"""Of a device whose description has no second tier: PCIe 4.0 x16."""
SUPERCHIPS = {"gh": 2.0e11, "gb": 1.95e11}
"""The same of devices that have a Grace processor beside them, by how their names begin: NVLink-C2C."""
StageParameters = tuple[float, float]
"""(shared, routed experts') parameters of a virtual stage on one device."""


StageLayers = tuple[tuple[LayerKind, int], ...]
"""How many layers of each kind a virtual stage has."""


def stage_layers(plan: Plan) -> list[StageLayers]:
    """Layers of each virtual stage by kind."""
    model = plan.transformer
    counts, start = [], 0
    for layers in plan.layers_per_stage:
        counts.append(tuple(layer_kinds(model, start, layers).items()))
        start += layers
    return counts


def stage_seconds(plan: Plan) -> tuple[MicroBatchSeconds, ...]:
    """Seconds of every virtual stage for one micro-batch."""
    groups = layer_groups(plan)
    # Most stages are alike: (layers by kind, is first, is last) -> seconds.
    known: dict[tuple[StageLayers, bool, bool], MicroBatchSeconds] = {}
    counts = stage_layers(plan)
    result = []
    for index, layers in enumerate(counts):
        key = (layers, index == 0, index == len(counts) - 1)
        if key not in known:
            known[key] = _stage_seconds(plan, groups, *key)
        result.append(known[key])
    return tuple(result)


def _stage_seconds(
    plan: Plan, groups: LayerGroups, layers: StageLayers, first: bool, last: bool
) -> MicroBatchSeconds:
    model, shape, precision = plan.transformer, plan.shape, plan.precision
    # Host work for a micro-batch: half with the forward, half with the backward, spread over a device's
    # chunks.
    host = 0.5 * plan.constants.micro_batch_seconds / plan.parallel.vpp
    total = MicroBatchSeconds(forward=host, backward_input=host)
    for kind, count in layers:
        total = total.plus(layer_seconds(model, shape, kind, precision, plan.recompute, groups), count)
    if plan.offload in ("activations", "both"):
        total = total.plus(_offload_seconds(plan, layers, total))
    if first:
        total = total.plus(embedding_seconds(model, shape, precision, groups))
    if last:
        total = total.plus(head_seconds(model, shape, precision, groups))
    if last and model.mtp_layers:
        kind = layer_kind(model, model.layers - 1)
        layer = layer_seconds(model, shape, kind, precision, plan.recompute, groups)
        total = total.plus(layer.plus(mtp_seconds(model, shape, precision, groups)), model.mtp_layers)
    return total


def _offload_seconds(plan: Plan, layers: StageLayers, compute: MicroBatchSeconds) -> MicroBatchSeconds:
    """What activations on their way to the host and back take beyond the layers' own time."""
    kept = sum(
        count * layer_bytes(plan.transformer, plan.shape, plan.recompute, kind.expert, plan.precision)
        for kind, count in layers
    )
    crossing = plan.offload_share * kept / host_bytes_per_second(plan.cluster.device)
    return MicroBatchSeconds(
        forward=max(0.0, crossing - compute.forward),
        backward_input=max(0.0, crossing - compute.backward_input - compute.backward_weight),
    )


def host_bytes_per_second(device: Device) -> float:
    """Rate between a device and the memory of its host."""
    if len(device.memory) > 1:
        return device.memory[1].bytes_per_second
    return SUPERCHIPS.get(device.name[:2], HOST_BYTES_PER_SECOND)


def stage_parameters(plan: Plan) -> list[StageParameters]:
    """Parameters of each virtual stage, as tensor and expert parallelism cut them."""
    model, shape = plan.transformer, plan.shape
    cut = shape.tp, shape.ep, shape.expert_tp
    vocabulary = model.vocab * model.hidden / shape.tp
    counts = stage_layers(plan)
    result = []
    for index, layers in enumerate(counts):
        shared = routed = 0.0
        for kind, count in layers:
            weights = layer_weights(model, kind.expert, *cut)
            shared, routed = shared + count * weights[0], routed + count * weights[1]
        if index == len(counts) - 1 and model.mtp_layers:
            weights = mtp_weights(model, *cut)
            shared += model.mtp_layers * weights[0]
            routed += model.mtp_layers * weights[1]
            # The modules read the embedding of the next token: a copy of it beside the last stage's head.
            shared += vocabulary if len(counts) > 1 and not model.tied_embeddings else 0.0
        # A tied embedding is on the first and on the last stage; once where they are the same stage.
        if index == 0:
            shared += vocabulary
        if index == len(counts) - 1 and not (model.tied_embeddings and len(counts) == 1):
            shared += vocabulary
        result.append((shared, routed))
    return result
