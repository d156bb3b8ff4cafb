"""The predicted step of a recommendation model on many devices; its costs are in cost/dlrm.py."""

from __future__ import annotations

from megalith.core.errors import PlanError
from megalith.cost.collectives import Fabric
from megalith.cost.operators import peak_flops
from megalith.explore.cost.dlrm import (
    DlrmPlan,
    dlrm_flops,
    dlrm_level_bytes,
    dlrm_memory,
    dlrm_seconds,
    dlrm_step_costs,
)
from megalith.explore.job import DlrmModel, Job, Parallel
from megalith.explore.load import resolve_cluster
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.placement import check_devices, group, outermost_level
from megalith.explore.prediction import Prediction

UNCERTAINTY = 0.3
"""A guess: `explore validate` replays no step of a recommendation model."""


def predict_dlrm(job: Job, *, record: bool = False) -> Prediction:
    """One training step: forward, backward, updates; PlanError says what does not fit and what would."""
    plan = make_dlrm_plan(job)
    memory = dlrm_memory(plan)
    seconds = dlrm_seconds(plan, memory.cached)
    costs = dlrm_step_costs(plan, seconds)
    timeline = simulate(build_schedule("1f1b", 1, 1), costs, record=record)
    exposed = {cause: by_device[0] for cause, by_device in timeline.exposed_seconds.items()}
    breakdown = {
        "compute": 3 * (seconds.bottom + seconds.top),
        "embedding": seconds.lookup + seconds.update,
        "all_to_all": seconds.exposed_all_to_all,
        "data_parallel": exposed["gradient"] + exposed["parameters"],
        "pipeline_bubble": exposed["bubble"],
        "optimizer": exposed["optimizer"],
    }
    flops = 3 * dlrm_flops(plan.model) * (plan.batch * plan.devices)
    achieved = flops / timeline.step_seconds / plan.devices
    return Prediction(
        step_seconds=timeline.step_seconds,
        model_tflops_per_gpu=achieved / 1e12,
        hardware_tflops_per_gpu=achieved / 1e12,
        mfu=achieved / peak_flops(plan.cluster.device, plan.precision),
        memory_bytes_per_device=sum(memory.by_use.values()),
        fits=True,
        breakdown=breakdown,
        memory=memory.by_use,
        level_bytes=dlrm_level_bytes(plan),
        bound_by=_bound_by(plan, breakdown),
        micro_batch=plan.batch,
        recompute="none",
        uncertainty=UNCERTAINTY,
        interval=(timeline.step_seconds * (1 - UNCERTAINTY), timeline.step_seconds * (1 + UNCERTAINTY)),
        interval_basis="an estimate: few steps of recommendation models are public",
        plan_error=UNCERTAINTY,
        timeline=timeline if record else None,
    )


def make_dlrm_plan(job: Job) -> DlrmPlan:
    """The job with its batch divided over the devices; PlanError if it does not divide."""
    assert isinstance(job.model, DlrmModel)
    cluster = resolve_cluster(job.cluster, job.hardware)
    parallel = _parallel(job, cluster.devices)
    check_devices(parallel, cluster)
    devices = parallel.dp
    if parallel.global_batch % devices:
        key = "parallel.global_batch" if job.parallel else "global_batch"
        fix = max(1, round(parallel.global_batch / devices)) * devices
        raise PlanError(
            f"global_batch={parallel.global_batch} is not a multiple of dp={devices}; take {key}={fix}."
        )
    return DlrmPlan(
        model=job.model,
        cluster=cluster,
        fabric=Fabric(cluster, job.network.routing, job.network.multipath, job.network.collectives),
        replicas=group(parallel, cluster, ("dp",)),
        devices=devices,
        batch=parallel.global_batch // devices,
        precision="tf32" if job.training.precision == "fp32" else job.training.precision,
        overlap=job.training.overlap,
    )


def _parallel(job: Job, devices: int) -> Parallel:
    if job.parallel is not None:
        return job.parallel
    if job.global_batch is None:
        raise PlanError("job: global_batch is missing; add it, such as global_batch: 65536.")
    return Parallel(dp=devices, global_batch=job.global_batch)


def _bound_by(plan: DlrmPlan, breakdown: dict[str, float]) -> str:
    """What takes the most of the step."""
    link = f"link:{plan.cluster.levels[outermost_level(plan.replicas)].name}"
    shares = {
        "compute": breakdown["compute"],
        "memory-bandwidth": breakdown["embedding"],
        link: breakdown["all_to_all"] + breakdown["data_parallel"],
    }
    return max(shares, key=lambda name: shares[name])
