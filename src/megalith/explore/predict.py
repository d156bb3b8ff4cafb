"""The step of a job: a plan's costs run through the pipeline simulation, and what the outcome means.

    prediction = predict(load_job("job.yaml"))
    prediction.step_seconds, prediction.breakdown

Where a job leaves settings open, estimates rank the plans that it may mean (candidates.py), and the best of
them are simulated.
"""

from __future__ import annotations

from math import expm1

from megalith.core.errors import PlanError
from megalith.cost.operators import peak_flops
from megalith.explore.candidates import candidate_plans, estimate_seconds, plan_bound_seconds
from megalith.explore.cost.memory import memory_of
from megalith.explore.cost.step import PlanCost, scale_loss, scheduled_cost, slowed_once
from megalith.explore.dlrm import predict_dlrm
from megalith.explore.intervals import band_of
from megalith.explore.job import Job, TransformerModel
from megalith.explore.load import resolve_sites
from megalith.explore.memory_advice import memory_shortfall, nearest_fit
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline
from megalith.explore.pipeline.waits import waits_by_root
from megalith.explore.placement import devices_needed, group, outermost_level
from megalith.explore.plan import Plan
from megalith.explore.prediction import Prediction
from megalith.explore.workload import model_flops, recompute_flops

SIMULATED = 4
"""Candidate plans that are simulated, of those with the best estimates."""


class DoesNotFitError(PlanError):
    """A device would have to hold more than it has."""


def predict(job: Job, *, record: bool = False, must_fit: bool = True) -> Prediction:
    """The simulated step of a job: the entry of `megalith explore predict`, the search and the validation.

    `record` keeps the timeline. PlanError says what does not fit and what would; without `must_fit` the step
    is timed all the same.
    """
    if (sites := resolve_sites(job)) is not None:
        # Only here: sites are predicted one by one with what this module offers.
        from megalith.explore.sites import predict_sites

        return predict_sites(job, sites, record=record, must_fit=must_fit)
    if not isinstance(job.model, TransformerModel):
        return predict_dlrm(job, record=record)
    plans = candidate_plans(job)
    if len(plans) == 1:
        try:
            return predict_plan(plans[0], record=record, must_fit=must_fit)
        except DoesNotFitError as error:
            fix = nearest_fit(job, plans[0])
            raise DoesNotFitError(f"{str(error).removesuffix('.')}; {fix}.") from error
    # Estimates leave out exposed communication, so the few best of them are all simulated, as far as their
    # bounds allow.
    best: tuple[Prediction, Plan] | None = None
    for plan in sorted(plans, key=estimate_seconds)[:SIMULATED]:
        if best is None or plan_bound_seconds(plan) < best[0].step_seconds:
            prediction = predict_plan(plan, must_fit=must_fit)
            if best is None or prediction.step_seconds < best[0].step_seconds:
                best = prediction, plan
    assert best is not None
    return predict_plan(best[1], record=True, must_fit=must_fit) if record else best[0]


def filled_job(job: Job, prediction: Prediction) -> Job:
    """The job with its blanks as the prediction filled them: what to write out and run."""
    if job.parallel is None:
        return job
    parallel = {name: getattr(prediction, name) for name in ("micro_batch", "vpp", "sharding")}
    training = {
        name: getattr(prediction, name) for name in ("recompute", "schedule", "offload", "offload_share")
    }
    return job.model_copy(
        update={
            "parallel": job.parallel.model_copy(update=parallel),
            "training": job.training.model_copy(update=training),
        }
    )


def predict_plan(plan: Plan, *, record: bool = False, must_fit: bool = True) -> Prediction:
    """The simulated step of a complete plan."""
    parallel, device, model = plan.parallel, plan.cluster.device, plan.transformer
    schedule, cost = scheduled_cost(plan)
    timeline = simulate(schedule, cost.costs, record=record)
    memory = memory_of(plan, timeline.peak_activations)
    if must_fit and memory.total > device.bytes:
        raise DoesNotFitError(f"{memory_shortfall(plan, memory)}.")
    devices = devices_needed(parallel)
    slowed = slowed_once(plan, cost.costs, timeline)
    lost = scale_loss(plan.constants.scale_loss, devices) * (timeline.step_seconds + slowed)
    seconds = timeline.step_seconds + slowed + lost
    breakdown = _breakdown(plan, schedule, cost, timeline)
    breakdown["data_parallel"] += slowed
    breakdown["scale_loss"] = lost
    model_work = model_flops(model, parallel.global_batch)
    all_work = model_work + recompute_flops(model, parallel.global_batch, plan.recompute, plan.shape.flash)
    band = band_of(plan)
    low, high = band.around(seconds)
    return Prediction(
        step_seconds=seconds,
        model_tflops_per_gpu=model_work / seconds / devices / 1e12,
        hardware_tflops_per_gpu=all_work / seconds / devices / 1e12,
        mfu=model_work / seconds / devices / peak_flops(device, plan.precision),
        memory_bytes_per_device=memory.total,
        fits=memory.fits(device.bytes),
        breakdown=breakdown,
        memory={**memory.by_use(), "margin": memory.margin},
        level_bytes=cost.level_bytes,
        bound_by=_bound_by(plan, cost, breakdown),
        micro_batch=plan.shape.micro_batch,
        recompute=plan.recompute,
        uncertainty=(high - low) / 2 / seconds,
        interval=(low, high),
        interval_basis=band.basis,
        plan_error=expm1(band.plan_error),
        stack=plan.stack.name,
        offload=plan.offload,
        offload_share=plan.offload_share,
        schedule=plan.schedule,
        vpp=parallel.vpp,
        sharding=plan.sharding,
        timeline=timeline if record else None,
    )


def _breakdown(plan: Plan, schedule: Schedule, cost: PlanCost, timeline: Timeline) -> dict[str, float]:
    """The step of the device that computes the longest, by what the time is spent on."""
    device = max(range(plan.parallel.pp), key=lambda index: timeline.compute_seconds[index])
    breakdown = _compute_breakdown(plan, schedule, cost, timeline.compute_seconds[device], device)
    exposed = {cause: by_device[device] for cause, by_device in timeline.exposed_seconds.items()}
    for cause, seconds in waits_by_root(schedule, cost.costs, timeline, device).items():
        exposed[cause] += seconds
        exposed["bubble"] -= seconds
    for cause, name in (
        ("bubble", "pipeline_bubble"),
        ("transfer", "pipeline_transfer"),
        ("optimizer", "optimizer"),
    ):
        breakdown[name] = breakdown.get(name, 0.0) + exposed[cause]
    breakdown["data_parallel"] += exposed["parameters"] + exposed["gradient"]
    return breakdown


def _compute_breakdown(
    plan: Plan, schedule: Schedule, cost: PlanCost, compute: float, device: int
) -> dict[str, float]:
    """The computing time of a device by what it is spent on."""
    stages = [cost.stages[stage] for stage in schedule.chunk_stages[device]]
    count = plan.micro_batches / schedule.streams
    parts = {
        name: count * sum(getattr(stage, name) for stage in stages)
        for name in (
            "recompute",
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "pipeline_transfer",
            "data_parallel",
        )
    }
    if schedule.streams > 1:
        # What one direction's expert communication hides behind the other's work takes no time.
        parts["expert_parallel"] -= count * sum(stage.total for stage in stages) - compute
    return {"compute": compute - sum(parts.values()), **parts}


def _bound_by(plan: Plan, cost: PlanCost, breakdown: dict[str, float]) -> str:
    """What takes the most of the step."""
    computing = breakdown["compute"] + breakdown["recompute"]
    total = sum(stage.total for stage in cost.stages)
    streaming = computing * sum(stage.streaming for stage in cost.stages) / total if total else 0.0
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
        level = plan.cluster.levels[outermost_level(group(plan.parallel, plan.cluster, axes))].name
        shares[f"link:{level}"] = shares.get(f"link:{level}", 0.0) + breakdown[name]
    return max(shares, key=lambda name: shares[name])
