"""The step of a job on sites that differ.

What crosses sites follows from the placement: the outermost axis of more than one member, dp or pp.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from megalith.core.errors import ConfigError
from megalith.cost.operators import peak_flops
from megalith.explore.candidates import RECOMPUTE
from megalith.explore.cost.memory import PeakMemory, memory_of
from megalith.explore.cost.step import scale_loss, slowed_once
from megalith.explore.job import Job, Parallel, TransformerModel
from megalith.explore.memory_advice import memory_shortfall
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline
from megalith.explore.pipeline.waits import waits_by_root
from megalith.explore.placement import devices_needed
from megalith.explore.plan import Plan
from megalith.explore.predict import DoesNotFitError, predict_plan
from megalith.explore.prediction import Prediction
from megalith.explore.sites.replicas import replica_plans
from megalith.explore.sites.shares import crossing_axis
from megalith.explore.sites.stages import message_bytes, stage_costs, stage_plans
from megalith.explore.stacks import default_stack
from megalith.explore.workload import model_flops, recompute_flops
from megalith.hardware.sites import LEVEL_NAME, SiteCluster


def predict_sites(job: Job, sites: SiteCluster, *, record: bool = False, must_fit: bool = True) -> Prediction:
    """The simulated step over sites that differ; a blank recompute is the least that fits on every site."""
    parallel = job.parallel
    if parallel is None or not isinstance(job.model, TransformerModel):
        raise ConfigError(
            "job: sites that differ need a transformer and key 'parallel', dp or pp last in its placement."
        )
    if job.training.stack is None:
        # One program runs on all sites: what a user of the quickest of them takes.
        quickest = max((site.device for site in sites.sites), key=lambda device: max(device.flops.values()))
        training = job.training.model_copy(update={"stack": default_stack(quickest)})
        job = job.model_copy(update={"training": training})
    predict_axis = _with_stages if crossing_axis(parallel) == "pp" else _with_replicas
    tightest: Prediction | None = None
    for recompute in (job.training.recompute,) if job.training.recompute else RECOMPUTE:
        prediction, shortfall = predict_axis(job, sites, parallel, recompute, record)
        if prediction.fits:
            return prediction
        tightest = prediction
    if must_fit:
        raise DoesNotFitError(shortfall)
    assert tightest is not None
    return tightest


def _with_replicas(
    job: Job, sites: SiteCluster, parallel: Parallel, recompute: str, record: bool
) -> tuple[Prediction, str]:
    plans = replica_plans(job, sites, parallel, parallel.micro_batch or 1, recompute)
    each = [predict_plan(plan, record=record, must_fit=False) for plan in plans]
    slowest = max(each, key=lambda prediction: prediction.step_seconds)
    shortfall = next(
        (
            _does_not_fit(sites, site, memory_of(plan), plan)
            for site, plan in enumerate(plans)
            if not each[site].fits
        ),
        "",
    )
    fullest = max(
        range(len(each)),
        key=lambda site: each[site].memory_bytes_per_device / sites.sites[site].device.bytes,
    )
    prediction = replace(
        slowest,
        fits=all(prediction.fits for prediction in each),
        memory=each[fullest].memory,
        memory_bytes_per_device=each[fullest].memory_bytes_per_device,
    )
    return _rated(prediction, slowest.step_seconds, job, sites, plans), shortfall


def _with_stages(
    job: Job, sites: SiteCluster, parallel: Parallel, recompute: str, record: bool
) -> tuple[Prediction, str]:
    pipeline = stage_plans(job, sites, parallel, parallel.micro_batch or 1, recompute)
    schedule, costs = stage_costs(pipeline)
    timeline = simulate(schedule, costs, record=record)
    held = timeline.peak_activations
    memories = [
        memory_of(plan, held, list(ranks)) for plan, ranks in zip(pipeline.plans, pipeline.ranks, strict=True)
    ]
    fits = [memory.fits(site.device.bytes) for memory, site in zip(memories, sites.sites, strict=True)]
    shortfall = next(
        (
            _does_not_fit(sites, site, memory, pipeline.plans[site])
            for site, memory in enumerate(memories)
            if not fits[site]
        ),
        "",
    )
    fullest = max(
        range(len(memories)), key=lambda site: memories[site].total / sites.sites[site].device.bytes
    )
    memory = memories[fullest]
    busiest = max(range(parallel.pp), key=timeline.compute_seconds.__getitem__)
    like = predict_plan(pipeline.plans[pipeline.site_of(busiest)], must_fit=False)
    crossing = sum(
        not (first in ranks and first + 1 in ranks)
        for first in range(parallel.pp - 1)
        for ranks in [pipeline.ranks[pipeline.site_of(first)]]
    )
    first = pipeline.plans[0]
    sent = message_bytes(first) * parallel.tp * parallel.cp * parallel.dp * first.micro_batches
    plan = pipeline.plans[pipeline.site_of(busiest)]
    slowed = slowed_once(plan, costs, timeline)
    lost = scale_loss(plan.constants.scale_loss, devices_needed(parallel)) * (timeline.step_seconds + slowed)
    breakdown = _breakdown(like, schedule, costs, timeline, busiest)
    breakdown["data_parallel"] += slowed
    breakdown["scale_loss"] = lost
    prediction = replace(
        like,
        step_seconds=timeline.step_seconds + slowed + lost,
        fits=all(fits),
        memory={**memory.by_use(), "margin": memory.margin},
        memory_bytes_per_device=memory.total,
        breakdown=breakdown,
        level_bytes={**like.level_bytes, LEVEL_NAME: sent if crossing else 0.0},
        bound_by=_bound_by(like, breakdown),
        timeline=timeline if record else None,
    )
    return _rated(prediction, like.step_seconds, job, sites, list(pipeline.plans)), shortfall


def _breakdown(
    like: Prediction, schedule: Schedule, costs: StepCosts, timeline: Timeline, rank: int
) -> dict[str, float]:
    """What the busiest rank spends its step on; parts of its computing as in the same plan on its site."""
    exposed = {cause: by_rank[rank] for cause, by_rank in timeline.exposed_seconds.items()}
    for cause, seconds in waits_by_root(schedule, costs, timeline, rank).items():
        exposed[cause] += seconds
        exposed["bubble"] -= seconds
    # Other ranks are longer at the end where first and last stage exchange what they share.
    shared = max(costs.optimizer_seconds) - costs.optimizer_seconds[rank]
    shared = min(shared, exposed["bubble"])
    exposed["transfer"] += shared
    exposed["bubble"] -= shared
    compute = timeline.compute_seconds[rank]
    inner = ("compute", "recompute", "tensor_parallel", "context_parallel", "expert_parallel")
    whole = sum(like.breakdown.get(name, 0.0) for name in inner) or 1.0
    parts = {name: like.breakdown.get(name, 0.0) * compute / whole for name in inner}
    return {
        **parts,
        "pipeline_transfer": exposed["transfer"],
        "pipeline_bubble": exposed["bubble"],
        "optimizer": exposed["optimizer"],
        "data_parallel": exposed["parameters"] + exposed["gradient"],
    }


def _bound_by(like: Prediction, breakdown: dict[str, float]) -> str:
    """What takes the most of the step; where messages of the pipeline do, it is the links between sites."""
    computing = breakdown["compute"] + breakdown["recompute"]
    waiting = breakdown["pipeline_transfer"]
    return f"link:{LEVEL_NAME}" if waiting > max(computing, breakdown["pipeline_bubble"]) else like.bound_by


def _rated(
    prediction: Prediction, like_seconds: float, job: Job, sites: SiteCluster, plans: list[Plan]
) -> Prediction:
    """The prediction with the rates of all sites together."""
    assert job.parallel is not None
    assert isinstance(job.model, TransformerModel)
    plan, seconds = plans[0], prediction.step_seconds
    work = model_flops(job.model, job.parallel.global_batch)
    again = recompute_flops(job.model, job.parallel.global_batch, plan.recompute, plan.shape.flash)
    peak = sum(site.devices * peak_flops(site.device, plan.precision) for site in sites.sites)
    changes: dict[str, object] = {}
    interval = getattr(prediction, "interval", None)
    if interval is not None and like_seconds > 0:
        changes["interval"] = tuple(end * seconds / like_seconds for end in interval)
    return replace(
        prediction,
        model_tflops_per_gpu=work / seconds / sites.devices / 1e12,
        hardware_tflops_per_gpu=(work + again) / seconds / sites.devices / 1e12,
        mfu=work / seconds / peak if peak < inf else 0.0,
        **changes,  # type: ignore[arg-type]
    )


def _does_not_fit(sites: SiteCluster, site: int, memory: PeakMemory, plan: Plan) -> str:
    return f"Site '{sites.sites[site].name}': {memory_shortfall(plan, memory)}; take parallel.sharding=zero1."
