"""The plans that a job may mean: every way to fill what it leaves open, and closed forms to rank them by.

A blank micro-batch, recompute mode or sharding, and a pipeline whose schedule is not given, are filled with
everything that fits in memory. `predict` simulates the best-ranked few.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from megalith.explore.cost.memory import memory_of, room_in_flight
from megalith.explore.cost.stages import host_bytes_per_second, stage_seconds
from megalith.explore.job import Job, TransformerModel
from megalith.explore.plan import Plan, make_plan, stack_of

RECOMPUTE = ("none", "selective", "full")
"""Recompute modes from the least work to the least memory."""
LARGEST_MICRO_BATCH = 32
PLENTY = 3
"""Micro-batches in flight for each stage, beyond which more of them bring nothing."""
FAST_HOST_BYTES_PER_SECOND = 1e11
FUSED = ("gpipe", "1f1b", "interleaved", "breadth-first")
"""Schedules whose devices end with the backward of their first chunk, weight gradients included."""


def candidate_plans(job: Job) -> list[Plan]:
    """Every way to fill the blanks that fits in memory, of recompute modes only the least; if none fits, the
    one that comes closest."""
    parallel, training = job.parallel, job.training
    blank = parallel is not None and parallel.dp > 1 and "sharding" not in parallel.model_fields_set
    traits = stack_of(job).traits
    blank = blank and traits.sharded_optimizer
    modes = RECOMPUTE[RECOMPUTE.index(traits.recompute) :]
    fitting, others = [], []
    for sharding, size, candidate in product(
        ("zero1",) if blank else (None,), _micro_batches(job), (job, *_interleaved(job))
    ):
        if candidate is not job and parallel and parallel.global_batch // (parallel.dp * size) % parallel.pp:
            continue
        for recompute in (training.recompute,) if training.recompute else modes:
            plan = make_plan(candidate, size, recompute, sharding)
            fits = memory_of(plan).fits(plan.cluster.device.bytes)
            if not fits and recompute == "none" and offload_is_free(plan):
                away = least_offload(plan)
                plan, fits = away or plan, away is not None
            if fits:
                fitting.append(plan)
                if plan.schedule != "greedy" or room_in_flight(plan) >= PLENTY * plan.parallel.pp:
                    # A greedy order may use the room that recompute makes.
                    break
                continue
            others.append(plan)
    return fitting or [min(others, key=lambda plan: memory_of(plan).total)]


def least_offload(plan: Plan) -> Plan | None:
    """The plan with as few layers' activations on the host as make it fit; None if all of them do not."""
    for tenths in range(1, 11):
        away = replace(plan, offload="activations", offload_share=tenths / 10)
        if memory_of(away).fits(plan.cluster.device.bytes):
            return away
    return None


def offload_is_free(plan: Plan) -> bool:
    """Whether the stack sends activations to the host before it computes anything twice: over a link as fast
    as that of a superchip they hide behind the layers."""
    fast = host_bytes_per_second(plan.cluster.device) >= FAST_HOST_BYTES_PER_SECOND
    return fast and plan.offload == "none" and plan.stack.traits.offloads_activations


def _micro_batches(job: Job) -> list[int]:
    """The micro-batch that the job gives, or all sizes that divide the batch of a replica."""
    parallel = job.parallel
    if parallel is None or parallel.micro_batch is not None:
        return [parallel.micro_batch if parallel and parallel.micro_batch else 1]
    each = max(1, parallel.global_batch // parallel.dp)
    sizes = [size for size in range(1, min(each, LARGEST_MICRO_BATCH) + 1) if each % size == 0]
    if job.training.schedule == "interleaved":
        sizes = [size for size in sizes if each // size % parallel.pp == 0]
    return sizes or [1]


def _interleaved(job: Job) -> list[Job]:
    """Where neither schedule nor chunks are given: the same pipeline interleaved, in as many chunks as
    divide."""
    parallel, model = job.parallel, job.model
    if parallel is None or not isinstance(model, TransformerModel) or parallel.pp == 1:
        return []
    given = "vpp" in parallel.model_fields_set or "schedule" in job.training.model_fields_set
    if given or parallel.layers_per_stage is not None or model.layers % parallel.pp:
        return []
    each = model.layers // parallel.pp
    training = job.training.model_copy(update={"schedule": "interleaved"})
    return [
        job.model_copy(update={"parallel": parallel.model_copy(update={"vpp": vpp}), "training": training})
        for vpp in range(2, each + 1)
        if each % vpp == 0
    ]


def estimate_seconds(plan: Plan) -> float:
    """A closed form to rank plans by: the busiest stage's work and a bubble, no exposed communication."""
    stages = stage_seconds(plan)
    pp, vpp = plan.parallel.pp, plan.parallel.vpp
    device = max(sum(stage.total for stage in stages[index::pp]) for index in range(pp))
    return device * (plan.micro_batches + (pp - 1) / vpp)


def lower_bound_seconds(job: Job) -> float:
    """Never above `predict(job).step_seconds`: the least of the bounds of the plans that the job may mean."""
    if not isinstance(job.model, TransformerModel):
        return 0.0
    return min(plan_bound_seconds(plan) for plan in candidate_plans(job))


def plan_bound_seconds(plan: Plan) -> float:
    """A step of the plan takes at least this: the busiest device's compute, and where the schedule forces
    it, the stages that micro-batches pass before and after it."""
    stages = stage_seconds(plan)
    pp = plan.parallel.pp
    busiest = max(sum(stage.total for stage in stages[index::pp]) for index in range(pp))
    if plan.schedule in FUSED:
        # A device's work begins when the first micro-batch reaches it, and after its last backward those
        # of the stages before it follow.
        longest, around = 0.0, 0.0
        for device in range(pp):
            work = plan.micro_batches * sum(stage.total for stage in stages[device::pp])
            longest = max(longest, around + work)
            around += stages[device].total
        return longest
    if plan.schedule in ("zb-v", "dualpipe"):
        # These pair stages otherwise; expert communication may hide behind the other direction.
        hidden = 1.0 if plan.schedule == "dualpipe" else 0.0
        busiest = sum(stage.total - hidden * stage.expert_parallel for stage in stages) / pp
    return plan.micro_batches * busiest
