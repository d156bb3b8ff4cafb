"""The state of the art to compare with: training across sites as CrossPipe does (arXiv 2507.00217).

The pipeline crosses the sites, data parallelism stays inside them, tensor parallelism inside nodes: that is
fixed, as is the network (ECMP, as it comes). The order of forwards, input gradients and weight gradients is
made for the costs of the links by its greedy, with as many micro-batches in flight as memory holds. The rest
is chosen as well as possible: the sizes of the axes, micro-batch, recompute and sharding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from megalith.core.errors import MegalithError, PlanError
from megalith.explore.candidates import RECOMPUTE
from megalith.explore.cost.memory import memory_of
from megalith.explore.cost.step import plan_cost
from megalith.explore.job import Job
from megalith.explore.load import resolve_cluster
from megalith.explore.pipeline.operations import Schedule
from megalith.explore.pipeline.schedules import build_schedule, greedy_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.pipeline.timeline import Timeline
from megalith.explore.plan import Plan, make_plan
from megalith.explore.predict import predict_plan
from megalith.explore.prediction import Prediction
from megalith.explore.search.algorithms.best_first import BestFirstOptions, SearchTree, best_first
from megalith.explore.search.analysis.prices import cost_per_step, cross_site_bytes
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.result import RankedPlan
from megalith.explore.search.space.baseline_layouts import pipeline_across_sites
from megalith.explore.search.space.decisions import NetworkChoice, PipelineChoice, PlanCandidate
from megalith.explore.search.space.restriction import Restriction
from megalith.explore.search.space.search_space import SearchSpace
from megalith.hardware.cluster import Cluster

USUAL_PATHS = 8
"""Connections that a collective library opens between two ranks over Ethernet, as it is usually set up."""
_BATCH = 4
_ANY = 10**9
_PLENTY = 3
"""Micro-batches in flight for each stage, beyond which more of them bring nothing."""


def crosspipe(job: Job, *, budget: int = 48) -> RankedPlan:
    """The best plan of this kind; PlanError if none fits."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    space = SearchSpace(job, cluster, crosspipe_space(cluster))
    outcome = best_first(_GreedyTree(space), BestFirstOptions(batch=_BATCH, budget=budget))
    if outcome.best is None or outcome.best.value is None:
        raise PlanError(
            f"{job.name or 'The job'} has no pipeline across the sites of {cluster.name or 'its cluster'} "
            "that fits in memory; take more devices."
        )
    prediction = outcome.best.value
    plan = space.to_job(outcome.best.leaf)
    return RankedPlan(
        job=plan.model_copy(
            update={"training": plan.training.model_copy(update={"recompute": prediction.recompute})}
        ),
        prediction=prediction,
        provenance="CrossPipe-like: pipeline across sites, greedy order, usual placement and network",
        cross_site_bytes=cross_site_bytes(cluster, prediction),
        cost_per_step=cost_per_step(cluster, prediction),
        in_space=False,
    )


class _GreedyTree(SearchTree[PlanCandidate, Prediction | None]):
    """The plans of this kind; a leaf is predicted with the greedy's order."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self._bounds = LowerBounds(space)

    def roots(self) -> Iterator[PlanCandidate]:
        return self._space.roots()

    def bound(self, node: PlanCandidate) -> float:
        # The greedy holds as many micro-batches as memory does: no limit on those in flight, no recompute.
        if node.pipeline is None:
            return self._bounds(node)
        any_order = replace(node.pipeline, extra_in_flight=_ANY)
        return self._bounds(PlanCandidate(node.layout, node.sharding, any_order))

    def branch(self, node: PlanCandidate) -> list[PlanCandidate] | None:
        return self._space.branch(node)

    def leaves(self, node: PlanCandidate) -> int:
        return self._space.leaves(node)

    def evaluate(self, leaves: Sequence[PlanCandidate]) -> list[tuple[float, Prediction | None]]:
        predictions = [greedy_prediction(self._space.to_job(leaf)) for leaf in leaves]
        return [(each.step_seconds if each else inf, each) for each in predictions]

    def work(self, leaf: PlanCandidate) -> float:
        return self._space.work(leaf)


def crosspipe_space(cluster: Cluster) -> Restriction:
    """Plans with the usual placement whose stages, and nothing else, lie on different sites."""
    usual = pipeline_across_sites(cluster)

    def pipeline(one: PipelineChoice) -> bool:
        # Named after a schedule; `evaluate` puts the greedy in its place.
        return usual.pipeline(one) and one.extra_in_flight == 1

    return replace(usual, pipeline=pipeline, networks=(NetworkChoice("ecmp", "auto", USUAL_PATHS),))


def greedy_prediction(job: Job) -> Prediction | None:
    """The step with the greedy's order, for the best recompute; None if nothing fits."""
    assert job.parallel is not None
    best: Prediction | None = None
    for recompute in (job.training.recompute,) if job.training.recompute else RECOMPUTE:
        try:
            plan = make_plan(job, job.parallel.micro_batch or 1, recompute)
            prediction = _predict(plan)
        except MegalithError:
            continue
        if prediction is not None and (best is None or prediction.step_seconds < best.step_seconds):
            best = prediction
        if _room(plan) >= min(plan.micro_batches, _PLENTY * plan.parallel.pp):
            # More room, for more work, has nothing left to hide.
            break
    return best


def _predict(plan: Plan) -> Prediction | None:
    pp, vpp, count = plan.parallel.pp, plan.parallel.vpp, plan.micro_batches
    room = _room(plan)
    if room < vpp:
        return None
    looped = build_schedule("breadth-first" if vpp > 1 else "1f1b", pp, count, vpp)
    costs = plan_cost(plan, looped).costs
    schedule = greedy_schedule(costs, pp, count, vpp, float(min(room, count * vpp)))
    timeline = simulate(schedule, costs)
    memory = memory_of(plan, timeline.peak_activations)
    if not memory.fits(plan.cluster.device.bytes):
        return None
    # Traffic, FLOPs and sizes are those of the same plan in any order.
    like = predict_plan(replace(plan, schedule="1f1b" if vpp == 1 else "breadth-first", memory_margin=0.0))
    return _as_greedy(like, schedule, timeline, memory.total + memory.margin)


def _room(plan: Plan) -> int:
    """Micro-batches of one chunk that fit in memory beside the training state."""
    pp = plan.parallel.pp
    empty = memory_of(plan, (0.0,) * pp)
    micro_batch_bytes = memory_of(plan, (1.0,) * pp).total - empty.total
    free = plan.cluster.device.bytes - empty.margin - empty.total
    if micro_batch_bytes <= 0:
        return plan.micro_batches * plan.parallel.vpp
    return int(free // micro_batch_bytes)


def _as_greedy(like: Prediction, schedule: Schedule, timeline: Timeline, memory_bytes: float) -> Prediction:
    seconds = timeline.step_seconds
    busiest = max(range(schedule.devices), key=timeline.compute_seconds.__getitem__)
    exposed = {cause: by_device[busiest] for cause, by_device in timeline.exposed_seconds.items()}
    ratio = like.step_seconds / seconds
    return replace(
        like,
        step_seconds=seconds,
        model_tflops_per_gpu=like.model_tflops_per_gpu * ratio,
        hardware_tflops_per_gpu=like.hardware_tflops_per_gpu * ratio,
        mfu=like.mfu * ratio,
        memory_bytes_per_device=memory_bytes,
        fits=True,
        breakdown={
            **like.breakdown,
            "pipeline_bubble": exposed["bubble"],
            "pipeline_transfer": exposed["transfer"],
            "data_parallel": exposed["parameters"] + exposed["gradient"],
            "optimizer": exposed["optimizer"],
        },
    )
