"""Bytes of the fullest device of a plan: training state and activations.

`predict` checks a plan with it after the simulation; the search checks plans that it has not simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megalith.cost.memory import StateBytes, state_bytes
from megalith.explore.cost.activations import head_bytes, layer_bytes, working_bytes
from megalith.explore.cost.stages import StageParameters, stage_parameters
from megalith.explore.plan import Plan
from megalith.explore.workload import layer_kinds


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes of the fullest device."""

    state: StateBytes
    activations: float
    margin: float
    """Kept free for fragmentation and communication buffers."""

    @property
    def total(self) -> float:
        """Bytes in use, the margin not counted."""
        return self.state.total + self.activations

    def by_use(self) -> dict[str, float]:
        """Bytes in use by what they hold."""
        return {
            "weights": self.state.weights,
            "gradients": self.state.gradients,
            "optimizer": self.state.optimizer,
            "activations": self.activations,
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
        activations = flights[device] * layers * per_layer + working
        if pp * vpp - 1 in stages:
            logits = head_bytes(plan.transformer, plan.shape)
            activations = max(activations, activations - working + logits)
        memory = PeakMemory(
            _state(plan, [parameters[stage] for stage in stages]),
            activations,
            margin,
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
    kinds = {kind.expert for kind in layer_kinds(model)}
    kept = max(layer_bytes(model, shape, recompute, expert) for expert in kinds)
    return kept, max(working_bytes(model, shape, recompute, expert) for expert in kinds)


def _state(plan: Plan, parameters: list[StageParameters]) -> StateBytes:
    """Weights, gradients and optimizer state of a device's stages."""
    shared = sum(stage[0] for stage in parameters)
    routed = sum(stage[1] for stage in parameters)
    state = state_bytes(shared, plan.precision, plan.sharding, plan.shards)
    if routed:
        expert_shards = max(1, plan.shards * plan.shape.tp // (plan.parallel.ep * plan.shape.expert_tp))
        state = state + state_bytes(routed, plan.precision, plan.sharding, expert_shards)
    return state


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
