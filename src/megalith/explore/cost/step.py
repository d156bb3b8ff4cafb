"""The costs of one step of a plan under a schedule: what the pipeline simulation runs on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2

from megalith.cost.memory import OPTIMIZER_BYTES, gradient_bytes, weight_bytes
from megalith.cost.operators import stream_seconds
from megalith.explore.cost.layers import MicroBatchSeconds
from megalith.explore.cost.memory import room_in_flight
from megalith.explore.cost.replicas import ReplicaCollectives, replica_collectives
from megalith.explore.cost.stages import host_bytes_per_second, stage_parameters, stage_seconds
from megalith.explore.cost.traffic import level_bytes
from megalith.explore.cost.transfers import Transfers, stage_transfers, with_blocking_sends
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule, greedy_schedule
from megalith.explore.pipeline.timeline import Timeline
from megalith.explore.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanCost:
    """A plan's costs as the simulation takes them, and the parts that a prediction reports."""

    costs: StepCosts
    stages: tuple[MicroBatchSeconds, ...]
    """By virtual stage."""
    level_bytes: dict[str, float]
    """Bytes a step that leave the busiest member of each level, by level name."""


def plan_cost(plan: Plan, schedule: Schedule) -> PlanCost:
    """Costs of the plan when its operations run in the order of `schedule`."""
    # DualPipe holds the model twice, once for each direction.
    stages = stage_seconds(plan) * schedule.streams
    transfers = stage_transfers(plan, schedule)
    forward: Transfers = transfers.forward
    backward: Transfers = transfers.backward
    if plan.waits_for_transfers:
        stages, forward, backward = with_blocking_sends(stages, transfers), (), ()
    held = stage_parameters(plan) * schedule.streams
    collectives = replica_collectives(plan, schedule, held)
    if plan.overlap:
        stages = _slowed_by_collectives(plan, schedule, stages, collectives)
    optimizer = []
    for device, chunk_stages in enumerate(schedule.chunk_stages):
        count = sum(sum(held[stage]) for stage in chunk_stages)
        optimizer.append(
            _optimizer_seconds(plan, count)
            + plan.constants.step_seconds
            + collectives.after_step.get(device, 0.0)
        )
    costs = StepCosts(
        forward=tuple(stage.forward for stage in stages),
        backward_input=tuple(stage.backward_input for stage in stages),
        backward_weight=tuple(stage.backward_weight for stage in stages),
        forward_transfers=forward,
        backward_transfers=backward,
        gradient=collectives.gradient,
        parameters=collectives.parameters,
        optimizer_seconds=tuple(optimizer),
        overlap=plan.overlap,
        forward_backward=_overlapped_pairs(plan, schedule, stages) if schedule.streams > 1 else {},
    )
    return PlanCost(costs, stages, level_bytes(plan, schedule, held, transfers))


def _slowed_by_collectives(
    plan: Plan,
    schedule: Schedule,
    stages: tuple[MicroBatchSeconds, ...],
    collectives: ReplicaCollectives,
) -> tuple[MicroBatchSeconds, ...]:
    """Stages with what gathers and reductions of every micro-batch take from the compute beside them."""
    share = 1 - plan.constants.overlap
    slowed = list(stages)
    for device, chunk_stages in enumerate(schedule.chunk_stages):
        for chunk, stage in enumerate(chunk_stages):
            gather, reduce = (
                share * part[device, chunk].seconds
                if (device, chunk) in part and part[device, chunk].each == "op"
                else 0.0
                for part in (collectives.parameters, collectives.gradient)
            )
            if gather or reduce:
                slowed[stage] = slowed[stage].plus(
                    MicroBatchSeconds(
                        forward=gather,
                        backward_input=gather + reduce,
                        data_parallel=2 * gather + reduce,
                    )
                )
    return tuple(slowed)


def slowed_once(plan: Plan, costs: StepCosts, timeline: Timeline) -> float:
    """The same of what is exchanged once a step: of what hides behind compute, on the device where the most
    does."""
    if not plan.overlap:
        return 0.0
    most = 0.0
    for device in range(len(timeline.compute_seconds)):
        total = sum(
            collective.seconds
            for part in (costs.parameters, costs.gradient)
            for (owner, _), collective in part.items()
            if owner == device and collective.each == "step"
        )
        exposed = sum(timeline.exposed_seconds[cause][device] for cause in ("parameters", "gradient"))
        most = max(most, total - exposed)
    return (1 - plan.constants.overlap) * most


def scheduled_cost(plan: Plan) -> tuple[Schedule, PlanCost]:
    """The order of operations that is simulated, and what they cost."""
    parallel = plan.parallel
    looped = "breadth-first" if parallel.vpp > 1 else "1f1b"
    name = looped if plan.schedule == "greedy" else plan.schedule
    schedule = _schedule(name, parallel.pp, plan.micro_batches, parallel.vpp, plan.extra_in_flight)
    cost = plan_cost(plan, schedule)
    if plan.schedule == "greedy":
        room = float(max(parallel.vpp, room_in_flight(plan)))
        schedule = greedy_schedule(cost.costs, parallel.pp, plan.micro_batches, parallel.vpp, room)
    if plan.schedule == "long-link":
        # The order depends on where the slow link is; stages lie on the same devices in all of them.
        schedule = build_schedule(
            plan.schedule,
            parallel.pp,
            plan.micro_batches,
            parallel.vpp,
            plan.extra_in_flight,
            costs=cost.costs,
        )
    return schedule, cost


def scale_loss(share: float, devices: int) -> float:
    """Share of a step that so many devices lose: `share` with each doubling beyond eight."""
    return share * log2(max(1.0, devices / 8))


@lru_cache(maxsize=64)
def _schedule(name: str, devices: int, micro_batches: int, chunks: int, extra: int) -> Schedule:
    return build_schedule(name, devices, micro_batches, chunks, extra)


def _overlapped_pairs(
    plan: Plan, schedule: Schedule, stages: tuple[MicroBatchSeconds, ...]
) -> dict[tuple[int, int], float]:
    """DualPipe: seconds of one direction's forward beside the other's backward, each under the other's
    expert communication."""
    times = 3 if plan.recompute == "full" else 2
    seconds = {}
    for first, second in schedule.chunk_stages:
        for ahead, behind in ((first, second), (second, first)):
            forward = stages[ahead].forward
            backward = stages[behind].backward_input + stages[behind].backward_weight
            sent = stages[ahead].expert_parallel / times
            returned = stages[behind].expert_parallel * (times - 1) / times
            hidden = min(sent, backward - returned) + min(returned, forward - sent)
            seconds[ahead, behind] = forward + backward - hidden
    return seconds


def _optimizer_seconds(plan: Plan, parameters: float) -> float:
    """Adam over this device's share: read gradient, master and moments, write them and the weight; and once
    more over the gradients for their norm."""
    shards = 1 if plan.sharding == "none" else plan.shards
    moved = 2 * OPTIMIZER_BYTES + 2 * gradient_bytes(plan.precision) + weight_bytes(plan.precision)
    seconds = stream_seconds(plan.cluster.device, plan.constants, moved * parameters / shards)
    if plan.offload in ("optimizer", "both"):
        # Gradients go to the host, weights come back; the host's own update runs beside the second.
        crossing = plan.stack.gradient_bytes(plan.precision) + weight_bytes(plan.precision)
        seconds += crossing * parameters / shards / host_bytes_per_second(plan.cluster.device)
    return seconds
