"""The step of a job: a plan's costs run through the pipeline simulation, and what the outcome means.

    prediction = predict(load_job("job.yaml"))
    prediction.step_seconds, prediction.breakdown

A blank micro-batch, recompute mode or sharding is filled with the best that fits in memory: estimates rank
the choices, the simulation gives the answer.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from megalith.core.errors import PlanError
from megalith.cost.operators import peak_flops
from megalith.explore.fitting import nearest_fit, why_not
from megalith.explore.job import Job, TransformerModel
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.placement import devices_needed, group
from megalith.explore.plan import Plan, is_older, make_plan, memory_of
from megalith.explore.prediction import Prediction
from megalith.explore.step import Step, build_step, stage_seconds
from megalith.explore.uncertainty import uncertainty_of
from megalith.explore.workload import model_flops, recompute_flops

RECOMPUTE = ("none", "selective", "full")
LARGEST_MICRO_BATCH = 32
SIMULATED = 4
FUSED = ("gpipe", "1f1b", "interleaved", "breadth-first")
"""Schedules whose devices end with the backward of their first chunk, weight gradients included."""


class DoesNotFitError(PlanError):
    """A device would have to hold more than it has."""


def predict(job: Job, *, record: bool = False, must_fit: bool = True) -> Prediction:
    """The simulated step; `record` keeps its timeline. PlanError says what does not fit and what would;
    without `must_fit` the step is timed all the same."""
    if not isinstance(job.model, TransformerModel):
        from megalith.explore.dlrm import predict_dlrm

        return predict_dlrm(job, record=record)
    plans = candidate_plans(job)
    if len(plans) == 1:
        try:
            return predict_plan(plans[0], record=record, must_fit=must_fit)
        except DoesNotFitError as error:
            fix = nearest_fit(job, plans[0])
            raise DoesNotFitError(f"{str(error).removesuffix('.')}; {fix}.") from error
    # Estimates leave out what is exposed, so the few best of them are all simulated, as far as their bounds
    # allow.
    best: tuple[Prediction, Plan] | None = None
    for plan in sorted(plans, key=estimate_seconds)[:SIMULATED]:
        if best is None or _plan_bound(plan) < best[0].step_seconds:
            found = predict_plan(plan, must_fit=must_fit)
            if best is None or found.step_seconds < best[0].step_seconds:
                best = found, plan
    assert best is not None
    return predict_plan(best[1], record=True, must_fit=must_fit) if record else best[0]


def filled(job: Job, prediction: Prediction) -> Job:
    """The job with its blanks as the prediction filled them: what to write out and run."""
    if job.parallel is None:
        return job
    parallel = {name: getattr(prediction, name) for name in ("micro_batch", "vpp", "sharding")}
    training = {name: getattr(prediction, name) for name in ("recompute", "schedule")}
    return job.model_copy(
        update={
            "parallel": job.parallel.model_copy(update=parallel),
            "training": job.training.model_copy(update=training),
        }
    )


def candidate_plans(job: Job) -> list[Plan]:
    """Every way to fill the blanks that fits in memory, of recompute modes only the least; if none fits, the
    one that comes closest."""
    parallel, training = job.parallel, job.training
    if parallel is None or parallel.micro_batch is not None:
        sizes = [parallel.micro_batch if parallel and parallel.micro_batch else 1]
    else:
        each = max(1, parallel.global_batch // parallel.dp)
        sizes = [size for size in range(1, min(each, LARGEST_MICRO_BATCH) + 1) if each % size == 0] or [1]
    blank = parallel is not None and parallel.dp > 1 and "sharding" not in parallel.model_fields_set
    blank = blank and not is_older(job)
    fitting, others = [], []
    for sharding, size, one in product(
        (None, "zero1") if blank else (None,), sizes, (job, *_interleaved(job))
    ):
        for recompute in (training.recompute,) if training.recompute else RECOMPUTE:
            plan = make_plan(one, size, recompute, sharding)
            if one is not job and plan.micro_batches % plan.parallel.pp:
                break
            if memory_of(plan).fits(plan.cluster.device.bytes):
                fitting.append(plan)
                break
            others.append(plan)
    return fitting or [min(others, key=lambda plan: memory_of(plan).total)]


def _interleaved(job: Job) -> list[Job]:
    """Where neither schedule nor chunks are said: the same pipeline interleaved, in as many chunks as
    divide."""
    parallel, model = job.parallel, job.model
    if parallel is None or not isinstance(model, TransformerModel) or parallel.pp == 1:
        return []
    said = "vpp" in parallel.model_fields_set or "schedule" in job.training.model_fields_set
    if said or parallel.layers_per_stage is not None or model.layers % parallel.pp:
        return []
    each = model.layers // parallel.pp
    training = job.training.model_copy(update={"schedule": "interleaved"})
    return [
        job.model_copy(update={"parallel": parallel.model_copy(update={"vpp": vpp}), "training": training})
        for vpp in range(2, each + 1)
        if each % vpp == 0
    ]


def estimate_seconds(plan: Plan) -> float:
    """A closed form to rank plans with: the busiest stage's work, a bubble, nothing exposed."""
    stages = stage_seconds(plan)
    pp, vpp = plan.parallel.pp, plan.parallel.vpp
    device = max(sum(stage.total for stage in stages[index::pp]) for index in range(pp))
    return device * (plan.micro_batches + (pp - 1) / vpp)


def lower_bound_seconds(job: Job) -> float:
    """Never above `predict(job).step_seconds`: the busiest device's compute and the way to it and back."""
    if not isinstance(job.model, TransformerModel):
        return 0.0
    return min(_plan_bound(plan) for plan in candidate_plans(job))


def _plan_bound(plan: Plan) -> float:
    stages = stage_seconds(plan)
    pp = plan.parallel.pp
    busiest = max(sum(stage.total for stage in stages[index::pp]) for index in range(pp))
    if plan.schedule in FUSED:
        # A device's work begins when the first micro-batch has come to it, and after its last backward those
        # of the stages before it follow.
        longest, around = 0.0, 0.0
        for device in range(pp):
            work = plan.micro_batches * sum(stage.total for stage in stages[device::pp])
            longest = max(longest, around + work)
            around += stages[device].total
        return longest
    if plan.schedule in ("zb-v", "dualpipe"):
        # Stages are paired otherwise than dealt round; expert traffic may hide behind the other direction.
        hidden = 1.0 if plan.schedule == "dualpipe" else 0.0
        busiest = sum(stage.total - hidden * stage.expert_parallel for stage in stages) / pp
    return plan.micro_batches * busiest


@lru_cache(maxsize=64)
def _schedule(name: str, devices: int, micro_batches: int, chunks: int, extra: int) -> Schedule:
    return build_schedule(name, devices, micro_batches, chunks, extra)


def scheduled_step(plan: Plan) -> tuple[Schedule, Step]:
    """The order of operations that is simulated, and what they cost."""
    parallel = plan.parallel
    schedule = _schedule(plan.schedule, parallel.pp, plan.micro_batches, parallel.vpp, plan.extra_in_flight)
    step = build_step(plan, schedule)
    if plan.schedule == "long-link":
        # The order depends on where the slow link is; stages lie on the same devices in all of them.
        schedule = build_schedule(
            plan.schedule,
            parallel.pp,
            plan.micro_batches,
            parallel.vpp,
            plan.extra_in_flight,
            costs=step.costs,
        )
    return schedule, step


def predict_plan(plan: Plan, *, record: bool = False, must_fit: bool = True) -> Prediction:
    """The simulated step of a complete plan."""
    parallel = plan.parallel
    schedule, step = scheduled_step(plan)
    timeline = simulate(schedule, step.costs, record=record)
    memory = memory_of(plan, timeline.peak_activations)
    device = plan.cluster.device
    if must_fit and memory.total > device.bytes:
        raise DoesNotFitError(f"{why_not(plan, memory)}.")
    seconds = timeline.step_seconds
    busiest = max(range(parallel.pp), key=lambda index: timeline.compute_seconds[index])
    breakdown = _breakdown(plan, schedule, step, timeline.compute_seconds[busiest], busiest)
    for cause, name in (
        ("bubble", "pipeline_bubble"),
        ("transfer", "pipeline_transfer"),
        ("optimizer", "optimizer"),
    ):
        breakdown[name] = breakdown.get(name, 0.0) + timeline.exposed_seconds[cause][busiest]
    exposed = timeline.exposed_seconds
    breakdown["data_parallel"] = exposed["parameters"][busiest] + exposed["gradient"][busiest]
    sequences, model = parallel.global_batch, plan.transformer
    useful = model_flops(model, sequences)
    done = useful + recompute_flops(model, sequences, plan.recompute, plan.shape.flash)
    devices = parallel.tp * parallel.cp * parallel.pp * parallel.dp
    return Prediction(
        step_seconds=seconds,
        model_tflops_per_gpu=useful / seconds / devices / 1e12,
        hardware_tflops_per_gpu=done / seconds / devices / 1e12,
        mfu=useful / seconds / devices / peak_flops(device, plan.precision),
        memory_bytes_per_device=memory.total + memory.margin,
        fits=memory.fits(device.bytes),
        breakdown=breakdown,
        memory={
            "weights": memory.state.weights,
            "gradients": memory.state.gradients,
            "optimizer": memory.state.optimizer,
            "activations": memory.activations,
            "margin": memory.margin,
        },
        level_bytes=step.level_bytes,
        bound_by=_bound_by(plan, step, breakdown),
        micro_batch=plan.shape.micro_batch,
        recompute=plan.recompute,
        uncertainty=_uncertainty(plan),
        schedule=plan.schedule,
        vpp=parallel.vpp,
        sharding=plan.sharding,
        timeline=timeline if record else None,
    )


def _breakdown(plan: Plan, schedule: Schedule, step: Step, compute: float, device: int) -> dict[str, float]:
    """The computing time of a device by what it is spent on."""
    mine = [step.stages[stage] for stage in schedule.chunk_stages[device]]
    count = plan.micro_batches / schedule.streams
    parts = {
        name: count * sum(getattr(stage, name) for stage in mine)
        for name in (
            "recompute",
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "pipeline_transfer",
        )
    }
    if schedule.streams > 1:
        # What one direction's expert traffic hides behind the other's work takes no time.
        parts["expert_parallel"] -= count * sum(stage.total for stage in mine) - compute
    return {"compute": compute - sum(parts.values()), **parts}


def _bound_by(plan: Plan, step: Step, breakdown: dict[str, float]) -> str:
    """What takes the most of the step."""
    computing = breakdown["compute"] + breakdown["recompute"]
    total = sum(stage.total for stage in step.stages)
    streaming = computing * sum(stage.streaming for stage in step.stages) / total if total else 0.0
    traffic = {
        "tensor_parallel": ("tp",),
        "context_parallel": ("cp",),
        "expert_parallel": ("cp", "dp"),
        "data_parallel": ("cp", "dp"),
        "pipeline_transfer": ("pp",),
    }
    shares = {
        "compute": computing - streaming,
        "memory-bandwidth": streaming,
        "bubble": breakdown["pipeline_bubble"],
    }
    for name, axes in traffic.items():
        level = _outermost(plan, axes)
        shares[f"link:{level}"] = shares.get(f"link:{level}", 0.0) + breakdown[name]
    return max(shares, key=lambda name: shares[name])


def _outermost(plan: Plan, axes: tuple[str, ...]) -> str:
    spans = group(plan.parallel, plan.cluster, axes)
    index = max((index for index, span in enumerate(spans) if span.ranks > 1), default=0)
    return plan.cluster.levels[index].name


def _uncertainty(plan: Plan) -> float:
    devices = devices_needed(plan.parallel)
    crossed = next(
        (index for index in range(len(plan.cluster.levels)) if plan.cluster.devices_within(index) >= devices),
        len(plan.cluster.levels) - 1,
    )
    tensor = group(plan.parallel, plan.cluster, ("tp",))
    return uncertainty_of(plan.cluster.device.name, crossed + 1, any(span.ranks > 1 for span in tensor[1:]))
