"""A plan's numbers for the pipeline simulation: seconds of each virtual stage, messages, collectives.

Compute comes from the operators of a layer; traffic of tensor, context and expert parallelism is part of an
operation's time, as the device waits for it; activations between stages and gradients among replicas are
messages of their own, on links that the simulation queues them on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil

from megalith.cost.collectives import (
    Fabric,
    Group,
    collective_seconds,
    dispatch_bytes,
    dispatch_seconds,
    egress_bytes,
    group_size,
)
from megalith.cost.memory import OPTIMIZER_BYTES, gradient_bytes, traffic_bytes, weight_bytes
from megalith.cost.operators import stream_seconds
from megalith.explore.job import TransformerModel
from megalith.explore.pipeline.costs import Collective, Each, StepCosts, Transfer
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.placement import boundary, expert_groups, group, split_group, stage_device
from megalith.explore.plan import Plan
from megalith.explore.stages import Work, work_of
from megalith.explore.workload import (
    Operators,
    Shape,
    embedding_operators,
    head_dim_of,
    head_operators,
    is_expert_layer,
    kv_heads_of,
    layer_operators,
    layer_weights,
)

MAXIMUM_BUCKETS = 8
"""More pieces than this change nothing that matters and cost the simulation time."""
_COMPRESSED_BYTES = {"none": None, "bf16": 2.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class Seconds:
    """One micro-batch through some layers; the parts say what of the three sums is what."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0
    recompute: float = 0.0
    tensor_parallel: float = 0.0
    context_parallel: float = 0.0
    expert_parallel: float = 0.0
    streaming: float = 0.0
    pipeline_transfer: float = 0.0
    """Messages between stages that the device waits for."""

    @property
    def total(self) -> float:
        return self.forward + self.backward_input + self.backward_weight

    def plus(self, other: Seconds, times: float = 1.0) -> Seconds:
        return Seconds(
            self.forward + times * other.forward,
            self.backward_input + times * other.backward_input,
            self.backward_weight + times * other.backward_weight,
            self.recompute + times * other.recompute,
            self.tensor_parallel + times * other.tensor_parallel,
            self.context_parallel + times * other.context_parallel,
            self.expert_parallel + times * other.expert_parallel,
            self.streaming + times * other.streaming,
            self.pipeline_transfer + times * other.pipeline_transfer,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """How one layer's operations talk: groups and the way the network is used."""

    fabric: Fabric
    tensor: Group
    context: Group
    experts: Group
    tensor_overlap: bool


def traffic_of(plan: Plan) -> Traffic:
    parallel, cluster = plan.parallel, plan.cluster
    experts = expert_groups(parallel, cluster)[0] if parallel.ep > 1 else ()
    return Traffic(
        plan.fabric,
        group(parallel, cluster, ("tp",)),
        group(parallel, cluster, ("cp",)),
        experts,
        plan.tensor_overlap,
    )


@lru_cache(maxsize=16384)
def layer_seconds(
    model: TransformerModel, shape: Shape, expert: bool, precision: str, recompute: str, traffic: Traffic
) -> Seconds:
    """One layer with its traffic."""
    fabric = traffic.fabric
    work = _work(layer_operators(model, shape, expert), fabric, precision)
    tokens = model.seq * shape.micro_batch // shape.cp
    constants = fabric.constants
    exposed = 1 - constants.tensor_overlap if traffic.tensor_overlap else 1.0
    # An all-reduce after attention and one after the MLP, each way; with sequence parallelism a reduce-
    # scatter and an all-gather that together take as long.
    tensor = (
        2 * exposed * collective_seconds(fabric, "all_reduce", traffic.tensor, 2.0 * tokens * model.hidden)
    )
    context_forward = context_backward = 0.0
    if shape.cp > 1:
        # Keys and values go round the ring while attention works on the block that is there.
        low = model.low_rank_attention
        width = (
            2 * kv_heads_of(model) * head_dim_of(model)
            if low is None
            else model.heads * (low.nope_head_dim + low.v_head_dim)
        )
        ring = collective_seconds(
            fabric, "all_gather", traffic.context, 2.0 * model.seq * shape.micro_batch * width / shape.tp
        )
        context_forward = max(0.0, ring - work.attention)
        context_backward = max(0.0, 2 * ring - 2.5 * work.attention)
    experts = 0.0
    if expert and shape.ep > 1:
        experts = sum(
            dispatch_seconds(fabric, traffic.experts, size, model.experts_per_token)
            for size in expert_bytes(model, shape, precision)
        )
    again = {"none": 0.0, "selective": work.core, "full": work.forward}[recompute]
    forward_traffic = tensor + context_forward + experts
    repeats = 1 if recompute == "full" else 0
    return Seconds(
        forward=work.forward + forward_traffic,
        backward_input=work.backward_input
        + again
        + (1 + repeats) * tensor
        + context_backward
        + repeats * context_forward
        + (1 + repeats) * experts,
        backward_weight=work.backward_weight,
        recompute=again,
        tensor_parallel=(2 + repeats) * tensor,
        context_parallel=(1 + repeats) * context_forward + context_backward,
        expert_parallel=(2 + repeats) * experts,
        streaming=work.streaming,
    )


def expert_bytes(model: TransformerModel, shape: Shape, precision: str) -> tuple[float, float]:
    """Bytes of a device's tokens, once each, on their way to the experts and back. In FP8 training the way
    there is in FP8 too and the sums that come back are not (DeepSeek-V3)."""
    elements = float(model.seq * shape.micro_batch // shape.cp * model.hidden)
    elements /= shape.tp if shape.sequence_parallel else 1
    return (1.0 if precision == "fp8" else 2.0) * elements, 2.0 * elements


@lru_cache(maxsize=4096)
def first_seconds(model: TransformerModel, shape: Shape, precision: str, traffic: Traffic) -> Seconds:
    """What the embedding adds to the first stage."""
    work = _work(embedding_operators(model, shape), traffic.fabric, precision)
    tokens = model.seq * shape.micro_batch // shape.cp
    tensor = collective_seconds(traffic.fabric, "all_reduce", traffic.tensor, 2.0 * tokens * model.hidden)
    return Seconds(
        work.forward + tensor, work.backward_input, 0.0, tensor_parallel=tensor, streaming=work.streaming
    )


@lru_cache(maxsize=4096)
def last_seconds(model: TransformerModel, shape: Shape, precision: str, traffic: Traffic) -> Seconds:
    """What the vocabulary projection and the loss add to the last stage."""
    work = _work(head_operators(model, shape), traffic.fabric, precision)
    tokens = model.seq * shape.micro_batch // shape.cp
    tensor = collective_seconds(traffic.fabric, "all_reduce", traffic.tensor, 2.0 * tokens * model.hidden)
    return Seconds(
        work.forward,
        work.backward_input + tensor,
        work.backward_weight,
        tensor_parallel=tensor,
        streaming=work.streaming,
    )


def _work(operators: Operators, fabric: Fabric, precision: str) -> Work:
    return work_of(operators, fabric.cluster.device, fabric.constants, precision)


@dataclass(frozen=True, slots=True)
class Step:
    """Everything the simulation needs, and what the answer is told from."""

    costs: StepCosts
    stages: tuple[Seconds, ...]
    """By virtual stage."""
    level_bytes: dict[str, float] = field(default_factory=dict)


def stage_layers(plan: Plan) -> list[tuple[int, int]]:
    """(dense layers, expert layers) of each virtual stage."""
    model = plan.transformer
    counts, start = [], 0
    for layers in plan.layers_per_stage:
        expert = sum(1 for layer in range(start, start + layers) if is_expert_layer(model, layer))
        counts.append((layers - expert, expert))
        start += layers
    return counts


def stage_seconds(plan: Plan) -> tuple[Seconds, ...]:
    """Seconds of every virtual stage for one micro-batch."""
    model, shape = plan.transformer, plan.shape
    precision, recompute = plan.precision, plan.recompute
    traffic = traffic_of(plan)
    # Host work for a micro-batch: half with the forward, half with the backward, spread over a device's
    # chunks.
    host = 0.5 * plan.constants.micro_batch_seconds / plan.parallel.vpp
    base = Seconds(forward=host, backward_input=host)
    known: dict[tuple[int, int, bool, bool], Seconds] = {}
    counts = stage_layers(plan)
    result = []
    for index, (dense, expert) in enumerate(counts):
        key = (dense, expert, index == 0, index == len(counts) - 1)
        if key not in known:
            total = base
            if dense:
                total = total.plus(layer_seconds(model, shape, False, precision, recompute, traffic), dense)
            if expert:
                total = total.plus(layer_seconds(model, shape, True, precision, recompute, traffic), expert)
            if key[2]:
                total = total.plus(first_seconds(model, shape, precision, traffic))
            if key[3]:
                total = total.plus(last_seconds(model, shape, precision, traffic))
            known[key] = total
        result.append(known[key])
    return tuple(result)


def stage_parameters(plan: Plan) -> list[tuple[float, float]]:
    """(shared, routed experts') parameters of each virtual stage on one device."""
    model, shape = plan.transformer, plan.shape
    dense = layer_weights(model, False, shape.tp, shape.ep)
    expert = layer_weights(model, True, shape.tp, shape.ep) if model.experts else (0.0, 0.0)
    vocabulary = model.vocab * model.hidden / shape.tp
    counts = stage_layers(plan)
    result = []
    for index, (plain, routed) in enumerate(counts):
        shared = plain * dense[0] + routed * expert[0]
        # A tied embedding stands on the first and on the last stage; once where they are one.
        if index == 0:
            shared += vocabulary
        if index == len(counts) - 1 and not (model.tied_embeddings and len(counts) == 1):
            shared += vocabulary
        result.append((shared, plain * dense[1] + routed * expert[1]))
    return result


def build_step(plan: Plan, schedule: Schedule) -> Step:
    """Costs of the plan under a schedule."""
    # DualPipe holds the model twice, once for each direction.
    stages = stage_seconds(plan) * schedule.streams
    levels: dict[str, float] = {level.name: 0.0 for level in plan.cluster.levels}
    forward, backward = _transfers(plan, schedule, levels)
    if plan.waits_for_transfers:
        stages, forward, backward = _with_sends(stages, forward, backward), (), ()
    gradient, parameters, across = _replicas(plan, schedule, levels)
    _count_layer_traffic(plan, levels)
    constants = plan.constants
    held = stage_parameters(plan) * schedule.streams
    optimizer = []
    for device, mine in enumerate(schedule.chunk_stages):
        count = sum(sum(held[stage]) for stage in mine)
        optimizer.append(_optimizer_seconds(plan, count) + constants.step_seconds + across.get(device, 0.0))
    costs = StepCosts(
        forward=tuple(stage.forward for stage in stages),
        backward_input=tuple(stage.backward_input for stage in stages),
        backward_weight=tuple(stage.backward_weight for stage in stages),
        forward_transfers=forward,
        backward_transfers=backward,
        gradient=gradient,
        parameters=parameters,
        optimizer_seconds=tuple(optimizer),
        overlap=plan.overlap,
        forward_backward=_side_by_side(plan, schedule, stages) if schedule.streams > 1 else {},
    )
    return Step(costs, stages, levels)


def _side_by_side(
    plan: Plan, schedule: Schedule, stages: tuple[Seconds, ...]
) -> dict[tuple[int, int], float]:
    """DualPipe: one direction's forward beside the other's backward, each under the other's expert
    traffic."""
    times = 3 if plan.recompute == "full" else 2
    found = {}
    for one, other in schedule.chunk_stages:
        for there, back in ((one, other), (other, one)):
            forward = stages[there].forward
            backward = stages[back].backward_input + stages[back].backward_weight
            sent = stages[there].expert_parallel / times
            returned = stages[back].expert_parallel * (times - 1) / times
            hidden = min(sent, backward - returned) + min(returned, forward - sent)
            found[there, back] = forward + backward - hidden
    return found


def _with_sends(
    stages: tuple[Seconds, ...],
    forward: tuple[Transfer | None, ...],
    backward: tuple[Transfer | None, ...],
) -> tuple[Seconds, ...]:
    """Where a device waits for what it sends, the message is part of the operation before it."""
    there = [one.seconds + one.latency_seconds if one else 0.0 for one in forward] + [0.0]
    back = [0.0] + [one.seconds + one.latency_seconds if one else 0.0 for one in backward]
    return tuple(
        stage.plus(Seconds(forward=sent, backward_input=returned, pipeline_transfer=sent + returned))
        for stage, sent, returned in zip(stages, there, back, strict=True)
    )


def _optimizer_seconds(plan: Plan, parameters: float) -> float:
    """Adam over this device's share: read gradient, master and moments, write them and the weight; and once
    more over the gradients for their norm."""
    shards = 1 if plan.sharding == "none" else plan.shards
    moved = 2 * OPTIMIZER_BYTES + 2 * gradient_bytes(plan.precision) + weight_bytes(plan.precision)
    return stream_seconds(plan.cluster.device, plan.constants, moved * parameters / shards)


def _transfers(
    plan: Plan, schedule: Schedule, levels: dict[str, float]
) -> tuple[tuple[Transfer | None, ...], tuple[Transfer | None, ...]]:
    """Activations between stages; each rank sends its share of the hidden state (scatter-gather)."""
    model, shape = plan.transformer, plan.shape
    size = 4.0 if plan.precision == "fp32" else 2.0
    message = size * model.seq * shape.micro_batch / shape.cp * model.hidden / shape.tp
    leaving: dict[tuple[int, int], float] = {}

    def transfer(sender: int, receiver: int) -> Transfer | None:
        crossed = boundary(plan.parallel, plan.cluster, sender, receiver)
        if crossed.level < 0:
            return None
        rate = plan.fabric.rate(crossed.level, crossed.sharing)
        place = (crossed.level, crossed.member)
        leaving[place] = leaving.get(place, 0.0) + message * crossed.sharing * plan.micro_batches
        link = (plan.cluster.levels[crossed.level].name, crossed.member)
        latency = plan.fabric.latency(crossed.level) + plan.constants.transfer_seconds
        return Transfer(link, message / rate, latency)

    placed = schedule.placement
    per_stream = len(placed) // schedule.streams
    pairs = list(pairwise(placed))
    forward = tuple(
        None if (index + 1) % per_stream == 0 else transfer(one, other)
        for index, (one, other) in enumerate(pairs)
    )
    backward = tuple(
        None if (index + 1) % per_stream == 0 else transfer(other, one)
        for index, (one, other) in enumerate(pairs)
    )
    for (level, _), count in leaving.items():
        name = plan.cluster.levels[level].name
        levels[name] = max(levels[name], count)
    return forward, backward


def _replicas(
    plan: Plan, schedule: Schedule, levels: dict[str, float]
) -> tuple[dict[tuple[int, int], Collective], dict[tuple[int, int], Collective], dict[int, float]]:
    """Gradients and parameters among replicas, by (device, chunk), and what follows the step by device."""
    held = stage_parameters(plan) * schedule.streams
    parallel, cluster = plan.parallel, plan.cluster
    shared_group = group(parallel, cluster, ("dp", "cp"))
    expert_group = expert_groups(parallel, cluster)[1] if parallel.ep > 1 else shared_group
    gradient: dict[tuple[int, int], Collective] = {}
    parameters: dict[tuple[int, int], Collective] = {}
    once: dict[int, float] = {}
    known: dict[tuple[float, float], tuple[float, float]] = {}
    reduced = 0.0
    for device, stages in enumerate(schedule.chunk_stages):
        for chunk, stage in enumerate(stages):
            shared, routed = held[stage]
            if (shared, routed) not in known:
                one = _exchange(plan, shared_group, shared)
                other = _exchange(plan, expert_group, routed)
                known[shared, routed] = (one[0] + other[0], one[1] + other[1])
            reduce_seconds, gather_seconds = known[shared, routed]
            link = _group_link(plan, shared_group, device)
            each = plan.sharding in ("zero3", "hybrid")
            if reduce_seconds:
                count = traffic_bytes(plan.precision) * (shared + routed)
                buckets = min(MAXIMUM_BUCKETS, max(1, ceil(count / plan.bucket_bytes)))
                often: Each = "op" if plan.sharding in ("zero2", "zero3", "hybrid") else "step"
                gradient[device, chunk] = Collective(
                    link,
                    reduce_seconds,
                    0.0,
                    often,
                    buckets if plan.overlap else 1,
                )
            if gather_seconds:
                parameters[device, chunk] = Collective(
                    link,
                    gather_seconds,
                    0.0,
                    "op" if each else "step",
                    MAXIMUM_BUCKETS if plan.overlap else 1,
                )
            reduced = max(reduced, shared)
    for part, replicas in enumerate((shared_group, expert_group)):
        most = max(sum(held[stage][part] for stage in mine) for mine in schedule.chunk_stages)
        _count_replicas(plan, replicas, most, levels)
    if plan.transformer.tied_embeddings and parallel.pp > 1:
        # The two copies of the embedding add their gradients up.
        first, last = schedule.placement[0], schedule.placement[-1]
        crossed = boundary(parallel, cluster, first, last)
        if crossed.level >= 0:
            size = (
                plan.transformer.vocab
                * plan.transformer.hidden
                / parallel.tp
                * gradient_bytes(plan.precision)
            )
            seconds = size / plan.fabric.rate(crossed.level, crossed.sharing)
            once = {first: seconds, last: seconds}
    if schedule.streams > 1:
        # The two copies of a stage lie on two devices and add their gradients up.
        for device, stages in enumerate(schedule.chunk_stages):
            crossed = boundary(parallel, cluster, device, parallel.pp - 1 - device)
            size = traffic_bytes(plan.precision) * sum(sum(held[stage]) for stage in stages)
            if crossed.level >= 0:
                seconds = size / plan.fabric.rate(crossed.level, crossed.sharing)
                once[device] = once.get(device, 0.0) + seconds
    return gradient, parameters, once


def _exchange(plan: Plan, replicas: Group, parameters: float) -> tuple[float, float]:
    """Seconds of one reduction of gradients and one gathering of parameters, by the sharding mode."""
    if parameters == 0 or group_size(replicas) == 1:
        return 0.0, 0.0
    fabric, steps = plan.fabric, plan.local_steps
    grads = traffic_bytes(plan.precision) * parameters
    weights = weight_bytes(plan.precision) * parameters
    compressed = _COMPRESSED_BYTES[plan.compression]
    shrink = max(1.0, traffic_bytes(plan.precision) / compressed) if compressed else 1.0
    if plan.sharding == "none":
        if steps > 1:
            return _local_steps(plan, replicas, grads, shrink), 0.0
        return collective_seconds(fabric, "all_reduce", replicas, grads, shrink), 0.0
    if plan.sharding in ("zero1", "zero2", "zero3"):
        reduce = collective_seconds(fabric, "reduce_scatter", replicas, grads, shrink)
        return reduce / steps, collective_seconds(fabric, "all_gather", replicas, weights)
    inside, across = split_group(replicas, plan.shard_level)
    ranks = group_size(inside)
    reduce = collective_seconds(fabric, "reduce_scatter", inside, grads)
    reduce += collective_seconds(fabric, "all_reduce", across, grads / ranks, shrink) / steps
    return reduce, collective_seconds(fabric, "all_gather", inside, weights)


def _local_steps(plan: Plan, replicas: Group, grads: float, shrink: float) -> float:
    """DiLoCo: every step inside a site, once in `local_steps` across."""
    outermost = max(index for index, span in enumerate(replicas) if span.ranks > 1)
    inside, across = split_group(replicas, outermost)
    seconds = collective_seconds(plan.fabric, "all_reduce", inside, grads) if inside else 0.0
    ranks = max(1, group_size(inside))
    return (
        seconds
        + collective_seconds(plan.fabric, "all_reduce", across, grads / ranks, shrink) / plan.local_steps
    )


def _group_link(plan: Plan, replicas: Group, device: int) -> Hashable:
    """What a group's traffic queues on: its own lane of the outermost link that it crosses.

    A lane of its own, because links share fairly: a message between stages does not wait until a whole bucket
    of gradients is through, as it would in one queue. Other stages' groups on the same link have theirs: the
    rate of each is its share of the link already (`LevelSpan.sharing`)."""
    level = max((index for index, span in enumerate(replicas) if span.ranks > 1), default=0)
    member = stage_device(plan.parallel, device) // plan.cluster.devices_within(level - 1)
    return (plan.cluster.levels[level].name, member, device, "replicas")


def _count_replicas(plan: Plan, replicas: Group, parameters: float, levels: dict[str, float]) -> None:
    """Bytes of one pipeline rank's gradients and parameters a step, as often as they are exchanged."""
    grads, weights = traffic_bytes(plan.precision) * parameters, weight_bytes(plan.precision) * parameters
    compressed = _COMPRESSED_BYTES[plan.compression]
    shrink = max(1.0, traffic_bytes(plan.precision) / compressed) if compressed else 1.0
    outermost = max((index for index, span in enumerate(replicas) if span.ranks > 1), default=0)
    sharded = plan.sharding in ("zero2", "zero3", "hybrid")
    reductions = plan.micro_batches if sharded else 1
    gathers = 2 * plan.micro_batches if plan.sharding in ("zero3", "hybrid") else 1
    for index, span in enumerate(replicas):
        if span.ranks == 1:
            continue
        rare = plan.local_steps if index == outermost else 1
        if plan.sharding == "none":
            count = egress_bytes("all_reduce", replicas, index, grads, shrink) / rare
        elif plan.sharding == "hybrid" and index >= plan.shard_level:
            # Copies are whole inside a member: only gradients cross.
            count = reductions * egress_bytes("all_reduce", replicas, index, grads, shrink) / rare
        else:
            count = reductions * egress_bytes("reduce_scatter", replicas, index, grads, shrink) / rare
            count += gathers * egress_bytes("all_gather", replicas, index, weights)
        levels[plan.cluster.levels[index].name] += count * span.sharing


def _count_layer_traffic(plan: Plan, levels: dict[str, float]) -> None:
    """Tensor- and expert-parallel bytes of the layers that one device computes."""
    model, shape, traffic = plan.transformer, plan.shape, traffic_of(plan)
    tokens = model.seq * shape.micro_batch // shape.cp
    layers = max(plan.layers_per_stage) * plan.parallel.vpp
    times = (3 if plan.recompute == "full" else 2) * plan.micro_batches * layers
    for index, span in enumerate(traffic.tensor):
        if span.ranks > 1:
            size = 2.0 * tokens * model.hidden
            count = 2 * times * egress_bytes("all_reduce", traffic.tensor, index, size) * span.sharing
            levels[plan.cluster.levels[index].name] += count
    if model.experts and shape.ep > 1:
        both_ways = sum(expert_bytes(model, shape, plan.precision))
        for index, span in enumerate(traffic.experts):
            if span.ranks > 1:
                leaving = dispatch_bytes(
                    plan.fabric, traffic.experts, index, both_ways, model.experts_per_token
                )
                levels[plan.cluster.levels[index].name] += times * span.sharing * leaving
