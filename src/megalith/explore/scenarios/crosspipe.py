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

from megalith.core.errors import PlanError
from megalith.explore.job import Job, Routing
from megalith.explore.load import resolve_cluster
from megalith.explore.predict import predict
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


def crosspipe(job: Job, *, budget: float = 48, routing: Routing = "ecmp") -> RankedPlan:
    """The best plan of this kind; PlanError if none fits."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    only = crosspipe_space(cluster)
    only = replace(only, networks=tuple(replace(network, routing=routing) for network in only.networks))
    space = SearchSpace(job, cluster, only)
    outcome = best_first(_GreedyTree(space), BestFirstOptions(batch=_BATCH, budget=budget))
    if outcome.best is None or outcome.best.value is None:
        raise PlanError(
            f"{job.name or 'The job'} has no pipeline across the sites of {cluster.name or 'its cluster'} "
            "that fits in memory; take more devices."
        )
    prediction = outcome.best.value
    plan = _in_greedy_order(space.to_job(outcome.best.leaf))
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
    try:
        return predict(_in_greedy_order(job))
    except PlanError:
        return None


def _in_greedy_order(job: Job) -> Job:
    changes = {"schedule": "greedy", "extra_in_flight": 0}
    return job.model_copy(update={"training": job.training.model_copy(update=changes)})
