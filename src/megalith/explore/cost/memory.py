"""Bytes of the fullest device of a plan: training state and activations.

`predict` checks a plan with it after the simulation; the search checks plans that it has not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megalith.cost.memory import StateBytes, state_bytes, weight_bytes
from megalith.explore.cost.activations import head_bytes, layer_bytes, working_bytes
from megalith.explore.cost.stages import StageParameters, stage_parameters
from megalith.explore.plan import Plan
from megalith.explore.workload import layer_kinds

PREFETCHED = 1
"""Layers that fully-sharded training gathers ahead of the one that it computes with."""
OFFLOADED_LAYERS = 3
"""Layers whose activations are on the device when they are offloaded: one computed, one leaving or coming,
one waiting."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes of the fullest device."""

    state: StateBytes
    activations: float
    margin: float
    """Kept free."""
    gathered: float = 0.0
    """Layers that ZeRO-3 has gathered: the one computed with and those fetched ahead, and their gradients."""
    framework: float = 0.0
    """CUDA context, NCCL's buffers, workspaces, and what the allocator holds beyond what it gave out."""

    @property
    def total(self) -> float:
        """Bytes in use, the margin not counted."""
        return self.state.total + self.activations + self.gathered + self.framework

    def by_use(self) -> dict[str, float]:
        """Bytes in use by what they hold."""
        return {
            "weights": self.state.weights,
            "gradients": self.state.gradients,
            "optimizer": self.state.optimizer,
            "activations": self.activations,
            "gathered": self.gathered,
            "framework": self.framework,
        }

    def fits(self, device_bytes: float) -> bool:
        """Whether a device of so many bytes holds it with the margin free."""
        return self.total + self.margin <= device_bytes


def memory_of(
    plan: Plan, held: tuple[float, ...] | None = None, only: Sequence[int] | None = None
) -> PeakMemory:
    """Memory of the fullest device of the pipeline, or of the pipeline ranks `only`.

    `held` is activations in flight by device, in micro-batches of one chunk, from the simulation; the closed
    forms of each schedule when left out.
    """
    parallel = plan.parallel
    pp, vpp = parallel.pp, parallel.vpp
    parameters = stage_parameters(plan)
    flights = held or in_flight(plan.schedule, pp, vpp, plan.micro_batches, plan.extra_in_flight)
    per_layer, working = _activation_bytes(plan)
    margin = plan.memory_margin * plan.cluster.device.bytes
    fullest: PeakMemory | None = None
    for device in range(pp) if only is None else only:
        stages = stages_on(plan.schedule, pp, vpp, device)
        layers = max(plan.layers_per_stage[stage] for stage in stages)
        kept = flights[device] * layers * per_layer
        if plan.offload in ("activations", "both"):
            here = max((1 - plan.offload_share) * kept, OFFLOADED_LAYERS * per_layer)
            kept = min(kept, here)
        activations = kept + working
        if pp * vpp - 1 in stages:
            logits = head_bytes(plan.transformer, plan.shape)
            activations = max(activations, activations - working + logits)
        held_here = [parameters[stage] for stage in stages]
        memory = _with_framework(
            plan,
            PeakMemory(_state(plan, held_here), activations, margin, _gathered(plan, held_here, layers)),
        )
        if fullest is None or memory.total > fullest.total:
            fullest = memory
    assert fullest is not None
    return fullest


def room_in_flight(plan: Plan) -> int:
    """Micro-batches of one chunk that fit in memory beside the training state."""
    pp = plan.parallel.pp
    empty = memory_of(plan, (0.0,) * pp)
    micro_batch_bytes = memory_of(plan, (1.0,) * pp).total - empty.total
    free = plan.cluster.device.bytes - empty.margin - empty.total
    most = plan.micro_batches * plan.parallel.vpp
    return most if micro_batch_bytes <= 0 else min(most, int(free // micro_batch_bytes))


def _activation_bytes(plan: Plan) -> tuple[float, float]:
    """What a layer keeps for its backward pass, and what the backward pass of one layer holds beside that."""
    model, shape, recompute = plan.transformer, plan.shape, plan.recompute
    kinds, precision = {kind.expert for kind in layer_kinds(model)}, plan.precision
    kept = max(layer_bytes(model, shape, recompute, expert, precision) for expert in kinds)
    return kept, max(working_bytes(model, shape, recompute, expert, precision) for expert in kinds)


def _state(plan: Plan, parameters: list[StageParameters]) -> StateBytes:
    """Weights, gradients and optimizer state of a device's stages."""
    shared = sum(stage[0] for stage in parameters)
    routed = sum(stage[1] for stage in parameters)
    state = plan_state(plan, shared, plan.shards)
    if routed:
        expert_shards = max(1, plan.shards * plan.shape.tp // (plan.parallel.ep * plan.shape.expert_tp))
        state = state + plan_state(plan, routed, expert_shards)
    return state


def plan_state(plan: Plan, parameters: float, shards: int) -> StateBytes:
    """State of so many parameters as the plan's software keeps it."""
    state = state_bytes(parameters, plan.precision, plan.sharding, shards)
    cut = shards if plan.sharding in ("zero2", "zero3", "hybrid") else 1
    gradients = parameters * plan.stack.gradient_bytes(plan.precision) / cut
    weights, optimizer = state.weights, state.optimizer
    if plan.stack.traits.master_is_parameter and plan.sharding != "none" and plan.precision != "fp32":
        # The sharded single-precision parameters are the masters; half precision is cast when it is gathered.
        weights, optimizer = optimizer / 3, optimizer * 2 / 3
    if plan.offload in ("optimizer", "both"):
        optimizer = 0.0
    return StateBytes(weights, gradients, optimizer)


def _gathered(plan: Plan, parameters: list[StageParameters], layers: int) -> float:
    """What sharding has whole at the peak: a layer and the next, and the gradients of one."""
    if plan.shards == 1 or plan.sharding not in ("zero2", "zero3", "hybrid"):
        return 0.0
    count = sum(sum(stage) for stage in parameters)
    weights = weight_bytes(plan.precision)
    if plan.sharding == "zero2":
        # Of weights in half precision there is one whole copy in the state already, of masters none.
        return count * weights if plan.stack.traits.master_is_parameter else 0.0
    if plan.stack.traits.keeps_gathered and plan.parallel.pp > 1:
        return count * (weights + plan.stack.gradient_bytes(plan.precision))
    model = plan.transformer
    most = max(layers * plan.parallel.vpp, 1)
    vocabulary = model.vocab * model.hidden / plan.shape.tp
    return (1 + PREFETCHED) * weights * count / most + 2 * weights * vocabulary


def _with_framework(plan: Plan, memory: PeakMemory) -> PeakMemory:
    traits = plan.stack.traits
    framework = traits.reserved_gibibytes * 2**30 + traits.fragmentation * memory.total
    return replace(memory, framework=framework)


def stages_on(schedule: str, pp: int, vpp: int, device: int) -> tuple[int, ...]:
    """Stages of the model that a device holds: dealt round, folded (zb-v), or one for each direction
    (dualpipe)."""
    if schedule == "zb-v":
        return (device, 2 * pp - 1 - device)
    if schedule == "dualpipe":
        return (device, pp - 1 - device)
    return tuple(range(device, pp * vpp, pp))


def in_flight(schedule: str, pp: int, vpp: int, micro_batches: int, extra: int) -> tuple[float, ...]:
    """Micro-batches of one chunk that each device holds at most, by the closed forms."""
    everything = float(micro_batches * vpp)
    result = []
    for device in range(pp):
        if schedule in ("gpipe", "breadth-first"):
            count = everything
        elif schedule == "interleaved" and vpp > 1:
            count = float(2 * (pp - device - 1) + (vpp - 1) * pp + 1)
        elif schedule == "zb-h2":
            count = float(2 * pp - 1 - 2 * device) if device < pp - 1 else 1.0
            count = max(count, float(pp - device))
        elif schedule in ("zb-v", "dualpipe"):
            count = float(vpp * pp if schedule == "zb-v" else pp + 1)
        elif schedule == "long-link":
            count = float(pp - device + extra)
        elif schedule == "greedy":
            # It takes what room there is; less than one micro-batch will not do.
            count = float(vpp)
        else:
            count = float(pp - device)
        result.append(min(everything, count))
    return tuple(result)
