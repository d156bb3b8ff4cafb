"""Seconds of one micro-batch through a layer: its operators and the communication inside the layer.

Tensor-, context- and expert-parallel communication is part of an operation's time, as the device waits for
it; what overlaps with compute is taken off first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from megalith.cost.collectives import (
    Fabric,
    Group,
    all_to_all_seconds,
    collective_seconds,
    dispatch_seconds,
    group_size,
)
from megalith.cost.operators import QUANTISED
from megalith.explore.cost.compute import ComputeSeconds, compute_seconds
from megalith.explore.job import TransformerModel
from megalith.explore.placement import expert_groups, group
from megalith.explore.plan import Plan
from megalith.explore.workload import (
    LayerKind,
    LayerShape,
    Operators,
    embedding_operators,
    head_dim_of,
    head_operators,
    kv_heads_of,
    layer_operators,
    mtp_operators,
)


@dataclass(frozen=True, slots=True)
class MicroBatchSeconds:
    """Seconds of one micro-batch through some layers.

    The first three are what the device is busy with; the others say what part of them is spent on what.
    """

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
    data_parallel: float = 0.0
    """What gathers and reductions beside compute slow it down by."""

    @property
    def total(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward_input + self.backward_weight

    def plus(self, other: MicroBatchSeconds, times: float = 1.0) -> MicroBatchSeconds:
        """The sum with `times` as much of `other`: so many more layers of that kind."""
        return MicroBatchSeconds(
            self.forward + times * other.forward,
            self.backward_input + times * other.backward_input,
            self.backward_weight + times * other.backward_weight,
            self.recompute + times * other.recompute,
            self.tensor_parallel + times * other.tensor_parallel,
            self.context_parallel + times * other.context_parallel,
            self.expert_parallel + times * other.expert_parallel,
            self.streaming + times * other.streaming,
            self.pipeline_transfer + times * other.pipeline_transfer,
            self.data_parallel + times * other.data_parallel,
        )


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The process groups that communicate inside a layer, and the fabric between their ranks."""

    fabric: Fabric
    tensor: Group
    context: Group
    experts: Group
    expert_tensor: Group
    tensor_overlap: bool
    """Tensor-parallel communication runs beside the matrix products that it feeds."""
    context_exchange: str = "ring"


def layer_groups(plan: Plan) -> LayerGroups:
    """The groups of a plan; the same for all of its layers."""
    parallel, cluster = plan.parallel, plan.cluster
    routed = expert_groups(parallel, cluster) if plan.transformer.experts else None
    tensor = group(parallel, cluster, ("tp",))
    return LayerGroups(
        plan.fabric,
        tensor,
        group(parallel, cluster, ("cp",)),
        routed.experts if routed else (),
        routed.tensor if routed else (),
        # The ring beside the products works over memory that all ranks can write to.
        plan.tensor_overlap and all(span.ranks == 1 for span in tensor[1:]),
        parallel.context_exchange,
    )


@lru_cache(maxsize=16384)
def layer_seconds(
    model: TransformerModel,
    shape: LayerShape,
    kind: LayerKind,
    precision: str,
    recompute: str,
    groups: LayerGroups,
) -> MicroBatchSeconds:
    """One transformer layer with its communication."""
    compute = _compute(layer_operators(model, shape, kind), groups.fabric, precision)
    exposed = 1 - groups.fabric.constants.overlap if groups.tensor_overlap else 1.0
    # An all-reduce after attention and one after the MLP, each way; with sequence parallelism a reduce-
    # scatter and an all-gather that together take as long. Routed experts take tokens as they are cut; only
    # ranks that share an expert gather what was routed to it.
    whole = 1 if kind.expert and not model.shared_experts else 2
    tensor = whole * exposed * _tensor_seconds(model, shape, groups)
    if kind.expert:
        tensor += _expert_tensor_seconds(model, shape, groups)
    context_forward, context_backward = _context_seconds(model, shape, groups, compute.attention)
    experts = 0.0
    if kind.expert and shape.ep > 1:
        experts = sum(
            dispatch_seconds(groups.fabric, groups.experts, size, model.experts_per_token)
            for size in expert_bytes(model, shape, precision)
        )
    recomputed = recompute_seconds(compute, shape, recompute)
    repeats = 1 if recompute == "full" else 0
    again = 1 if repeats or "moe" in shape.modules else 0
    return MicroBatchSeconds(
        forward=compute.forward + (tensor + context_forward + experts),
        backward_input=compute.backward_input
        + recomputed
        + (1 + repeats) * tensor
        + context_backward
        + repeats * context_forward
        + (1 + again) * experts,
        backward_weight=compute.backward_weight,
        recompute=recomputed,
        tensor_parallel=(2 + repeats) * tensor,
        context_parallel=(1 + repeats) * context_forward + context_backward,
        expert_parallel=(2 + again) * experts,
        streaming=compute.streaming,
    )


_MODULE_OPERATORS = {
    "layernorm": ("layer norms",),
    "mlp": ("fc1", "fc2", "activation"),
    "moe": ("experts 1", "experts 2", "expert activation", "permute"),
    "moe_act": ("expert activation",),
    "shared_experts": ("shared 1", "shared 2", "shared activation"),
    "mla_up_proj": ("kv up", "q up"),
}
"""Module of `training.recompute_modules` -> the operators that it does again."""


def recompute_seconds(compute: ComputeSeconds, shape: LayerShape, recompute: str) -> float:
    """Seconds of a layer's forward that its backward pass does again."""
    if recompute == "none":
        return 0.0
    if recompute == "full":
        return compute.forward
    if shape.modules:
        names = {name for module in shape.modules for name in _MODULE_OPERATORS.get(module, ())}
        again = sum(seconds for name, seconds in (*compute.products, *compute.passes) if name in names)
        return again + (compute.core + compute.attention if "core_attn" in shape.modules else 0.0)
    if shape.selective == "core":
        return compute.core
    return 0.5 * sum(seconds for _, seconds in compute.products) + sum(
        seconds for _, seconds in compute.passes
    )


def _context_seconds(
    model: TransformerModel, shape: LayerShape, groups: LayerGroups, attention: float
) -> tuple[float, float]:
    """Forward and backward seconds in which attention waits for keys and values of other ranks.

    They go round the ring of ranks while attention works on the block that is there; or they are gathered
    before it, and their gradients scattered after; or all ranks exchange heads for tokens and back.
    """
    if shape.cp == 1:
        return 0.0, 0.0
    low = model.low_rank_attention
    if groups.context_exchange == "all-to-all":
        value = low.v_head_dim if low else head_dim_of(model)
        query = low.nope_head_dim + low.rope_head_dim if low else head_dim_of(model)
        kv_heads = model.heads if low else max(kv_heads_of(model), shape.tp * shape.cp)
        elements = model.heads * (query + value) + kv_heads * (query + value)
        tokens = model.seq * shape.micro_batch / shape.cp
        swap = all_to_all_seconds(groups.fabric, groups.context, 2.0 * tokens * elements / shape.tp)
        return swap, swap
    width = (
        2 * kv_heads_of(model) * head_dim_of(model)
        if low is None
        else model.heads * (low.nope_head_dim + low.v_head_dim)
    )
    ring = collective_seconds(
        groups.fabric,
        "all_gather",
        groups.context,
        2.0 * model.seq * shape.micro_batch * width / shape.tp,
    )
    if groups.context_exchange == "all-gather":
        return ring, 2 * ring
    return max(0.0, ring - attention), max(0.0, 2 * ring - 2.5 * attention)


def expert_bytes(model: TransformerModel, shape: LayerShape, precision: str) -> tuple[float, float]:
    """Bytes of a device's tokens, once each, dispatched to the experts and combined after them.

    Where FP8 training dispatches in FP8 too, the combined sums are not (DeepSeek-V3).
    """
    elements = float(model.seq * shape.micro_batch // shape.cp * model.hidden)
    elements /= shape.tp if shape.sequence_parallel else 1
    return (1.0 if precision in QUANTISED and shape.narrow_dispatch else 2.0) * elements, 2.0 * elements


@lru_cache(maxsize=4096)
def embedding_seconds(
    model: TransformerModel, shape: LayerShape, precision: str, groups: LayerGroups
) -> MicroBatchSeconds:
    """What the token embedding adds to the first stage."""
    compute = _compute(embedding_operators(model, shape), groups.fabric, precision)
    tensor = _tensor_seconds(model, shape, groups)
    return MicroBatchSeconds(
        compute.forward + tensor,
        compute.backward_input,
        0.0,
        tensor_parallel=tensor,
        streaming=compute.streaming,
    )


@lru_cache(maxsize=4096)
def mtp_seconds(
    model: TransformerModel, shape: LayerShape, precision: str, groups: LayerGroups
) -> MicroBatchSeconds:
    """What one module of multi-token prediction adds to its layer: the projection, and the head again."""
    compute = _compute(mtp_operators(model, shape), groups.fabric, precision)
    tensor = _tensor_seconds(model, shape, groups)
    own = MicroBatchSeconds(
        compute.forward + tensor,
        compute.backward_input + tensor,
        compute.backward_weight,
        tensor_parallel=2 * tensor,
        streaming=compute.streaming,
    )
    return own.plus(head_seconds(model, shape, precision, groups))


@lru_cache(maxsize=4096)
def head_seconds(
    model: TransformerModel, shape: LayerShape, precision: str, groups: LayerGroups
) -> MicroBatchSeconds:
    """What the vocabulary projection and the loss add to the last stage."""
    compute = _compute(head_operators(model, shape), groups.fabric, precision)
    tensor = _tensor_seconds(model, shape, groups)
    return MicroBatchSeconds(
        compute.forward,
        compute.backward_input + tensor,
        compute.backward_weight,
        tensor_parallel=tensor,
        streaming=compute.streaming,
    )


def _tensor_seconds(model: TransformerModel, shape: LayerShape, groups: LayerGroups) -> float:
    """One all-reduce of the hidden state among tensor-parallel ranks."""
    tokens = model.seq * shape.micro_batch // shape.cp
    return collective_seconds(groups.fabric, "all_reduce", groups.tensor, 2.0 * tokens * model.hidden)


def _expert_tensor_seconds(model: TransformerModel, shape: LayerShape, groups: LayerGroups) -> float:
    """Tokens routed to an expert gathered among the ranks that share it, and their results scattered."""
    if group_size(groups.expert_tensor) == 1:
        return 0.0
    tokens = model.seq * shape.micro_batch // shape.cp * model.experts_per_token
    routed = 2.0 * tokens * model.hidden * shape.expert_tp / shape.tp
    return collective_seconds(groups.fabric, "all_reduce", groups.expert_tensor, routed)


def _compute(operators: Operators, fabric: Fabric, precision: str) -> ComputeSeconds:
    return compute_seconds(operators, fabric.cluster.device, fabric.constants, precision)
