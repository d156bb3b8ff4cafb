"""The search of one job's space on one cluster.

options that no plan needs are dropped (space/dominance.py)
the tree of the rest is searched best-first by lower bounds (bounds/, algorithms/best_first.py)
local search from the best plans settles single layers, buckets, and whatever the budget left
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from megalith.core.bounds import checked_bound
from megalith.explore.job import Job
from megalith.explore.load import resolve_cluster
from megalith.explore.predict import predict
from megalith.explore.search.algorithms.best_first import (
    BestFirstOptions,
    BestFirstOutcome,
    SearchTree,
    best_first,
)
from megalith.explore.search.algorithms.local_search import EvaluationLog, LocalSearch
from megalith.explore.search.algorithms.neighbours import greedy_order
from megalith.explore.search.algorithms.worker_pool import WorkerPool
from megalith.explore.search.analysis.prices import cost_per_step, cross_site_bytes
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.evaluate import PlanEvaluation, Predict, evaluate
from megalith.explore.search.ranking import first_of_each_kind
from megalith.explore.search.result import RankedPlan
from megalith.explore.search.space.baseline_layouts import pipeline_across_sites, replicas_across_sites
from megalith.explore.search.space.decisions import PlanCandidate
from megalith.explore.search.space.dominance import undominated
from megalith.explore.search.space.restriction import Restriction
from megalith.explore.search.space.search_space import SearchSpace

BATCH = 8
BUDGET = 600
_LOCAL_BUDGET = 60
_FIRST_SHARE = 0.1
"""Of the budget, for each of the baseline layouts that a search begins with."""
_CLOSING = 5000
"""Nodes that are opened when the budget is spent, for the sake of the bound."""
_CLOSING_SHARE = 1.0
"""Of the budget, for leaves that hold the bound down then."""
_STARTS = 3
_GREEDY_TRIES = 6
_SLACK = 0.02
"""Leaves this near to the best are evaluated too, so that the next best is known."""

Say = Callable[[str], None]
_Outcome = BestFirstOutcome[PlanCandidate, PlanEvaluation]


@dataclass(frozen=True, slots=True)
class SpaceResult:
    """All plans evaluated on one cluster, fastest first, and what is proved of the others."""

    plans: tuple[RankedPlan, ...]
    lower_bound_seconds: float
    examined: int
    pruned: int
    unexamined: int


def search_job(
    job: Job,
    *,
    only: Restriction | None = None,
    workers: int = 1,
    budget: float = BUDGET,
    say: Say = lambda _: None,
) -> SpaceResult:
    """All of one job's space on its cluster, or the part of it that `only` leaves."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    listed = SearchSpace(job, cluster, only)
    networks = tuple(undominated(listed.networks, cluster))
    space = SearchSpace(job, cluster, replace(only or Restriction(), networks=networks))
    bounds = LowerBounds(space)
    begin: tuple[Restriction, ...] = ()
    if only is None and space.transformer:
        begin = (replicas_across_sites(cluster), pipeline_across_sites(cluster))
    result = search_space(space, predict, bounds, begin=begin, workers=workers, budget=budget, say=say)
    dropped = len(listed.networks) / len(networks)
    # Options that dominance dropped would each have been a plan.
    total = result.examined + result.pruned + result.unexamined
    return replace(result, pruned=result.pruned + int(total * (dropped - 1)))


def search_space(
    space: SearchSpace,
    predict: Predict,
    bounds: LowerBounds,
    *,
    begin: Sequence[Restriction] = (),
    budget: float = BUDGET,
    workers: int = 1,
    say: Say = lambda _: None,
) -> SpaceResult:
    """Searches one space: parts of it to begin with, then the whole tree, then moves from the best plans."""
    log = EvaluationLog()
    with WorkerPool(partial(evaluate, space, predict), workers) as pool:
        for only in begin:
            part = SearchSpace(space.job, space.cluster, replace(only, networks=space.networks))
            tree = _PlanTree(part, bounds, pool, log)
            outcome = best_first(
                tree, BestFirstOptions(batch=BATCH, budget=_FIRST_SHARE * budget, slack=_SLACK)
            )
            _try_greedy_orders(space, outcome, pool, log)
        known = min((evaluation.seconds for evaluation in log.evaluations.values()), default=inf)
        whole = _PlanTree(space, bounds, pool, log)
        options = BestFirstOptions(
            batch=BATCH,
            budget=budget,
            slack=_SLACK,
            incumbent=known,
            closing=_CLOSING,
            closing_budget=_CLOSING_SHARE * budget,
        )
        outcome = best_first(whole, options)
        say(f"{outcome.evaluated} plans simulated, {outcome.pruned} ruled out, {outcome.unopened} left")
        feasible = [plan for plan, evaluation in log.evaluations.items() if evaluation.seconds < inf]
        feasible.sort(key=log.seconds)
        LocalSearch(space, bounds, log, pool.map).improve(
            first_of_each_kind(feasible)[:_STARTS],
            budget=max(_LOCAL_BUDGET, budget / 3),
            inside_tree=not outcome.exact,
        )
    plans = tuple(_ranked_plans(space, log, exact=outcome.exact))
    pruned, unexamined = _counted(space, outcome, log.evaluations)
    bound = _proved(outcome, plans, unexamined)
    return SpaceResult(plans, bound, len(log.evaluations), pruned, unexamined)


def _try_greedy_orders(
    space: SearchSpace,
    outcome: _Outcome,
    pool: WorkerPool[PlanCandidate, PlanEvaluation],
    log: EvaluationLog,
) -> None:
    """Predicts the best few plans in a greedy's order too: no baseline has an order that a search has not."""
    best = [leaf.leaf for leaf in outcome.leaves[:_GREEDY_TRIES] if leaf.cost < inf]
    greedy = dict.fromkeys(order for leaf in best if (order := greedy_order(space, leaf)) is not None)
    fresh = [plan for plan in greedy if plan not in log.evaluations]
    log.evaluations |= zip(fresh, pool.map(fresh), strict=True)
    log.moves |= dict.fromkeys(fresh, "greedy order")


class _PlanTree(SearchTree[PlanCandidate, PlanEvaluation]):
    """A space as best-first search asks for it; what it evaluates goes to the log, and nothing twice."""

    def __init__(
        self,
        space: SearchSpace,
        bounds: LowerBounds,
        pool: WorkerPool[PlanCandidate, PlanEvaluation],
        log: EvaluationLog,
    ) -> None:
        self._space, self._bounds = space, bounds
        self._pool, self._log = pool, log

    def roots(self) -> Iterator[PlanCandidate]:
        """Every layout."""
        return self._space.roots()

    def bound(self, node: PlanCandidate) -> float:
        """The lower bound on the step of all plans below a node."""
        return self._bounds(node)

    def branch(self, node: PlanCandidate) -> list[PlanCandidate] | None:
        """The next decision's options, or None for a plan."""
        return self._space.branch(node)

    def leaves(self, node: PlanCandidate) -> int:
        """Plans below a node."""
        return self._space.leaves(node)

    def evaluate(self, leaves: Sequence[PlanCandidate]) -> list[tuple[float, PlanEvaluation]]:
        """Predicts plans that were not predicted before."""
        log = self._log
        fresh = [leaf for leaf in leaves if leaf not in log.evaluations]
        log.evaluations |= zip(fresh, self._pool.map(fresh), strict=True)
        return [(log.seconds(leaf), log.evaluations[leaf]) for leaf in leaves]

    def estimate(self, node: PlanCandidate, bound: float) -> float:
        """What a plan with this bound may well take."""
        return self._bounds.estimate(node, bound)

    def family(self, node: PlanCandidate) -> Hashable:
        """Plans whose bounds are about as loose; None before the schedule is chosen."""
        if node.pipeline is None or node.sharding is None:
            return None
        return node.pipeline.schedule, node.pipeline.vpp > 1, node.sharding.strategy

    def work(self, leaf: PlanCandidate) -> float:
        """What simulating a plan takes, in units of a short one."""
        return self._space.work(leaf)


def _ranked_plans(space: SearchSpace, log: EvaluationLog, *, exact: bool) -> Iterator[RankedPlan]:
    """The plans that can run, fastest first."""
    source = "proved best-first search" if exact else "best-first search"
    for candidate, evaluation in sorted(log.evaluations.items(), key=lambda entry: entry[1].seconds):
        prediction, move = evaluation.prediction, log.moves.get(candidate, "")
        if evaluation.seconds == inf or prediction is None:
            continue
        yield RankedPlan(
            job=space.to_job(candidate),
            prediction=prediction,
            provenance=f"local move ({move}) after {source}" if move else source,
            cross_site_bytes=cross_site_bytes(space.cluster, prediction),
            cost_per_step=cost_per_step(space.cluster, prediction),
            in_space=space.contains(candidate),
        )


def _counted(space: SearchSpace, outcome: _Outcome, evaluated: Iterable[PlanCandidate]) -> tuple[int, int]:
    """Plans ruled out and plans left over, once those are taken off that were evaluated outside of the tree's
    search: by one of its parts before it, or by moves after it."""
    in_tree = {leaf.leaf for leaf in outcome.leaves}
    also = [plan for plan in evaluated if plan not in in_tree and space.contains(plan)]
    still_open = set(outcome.open)
    opened = sum(any(node in still_open for node in _path(plan)) for plan in also)
    return outcome.pruned - (len(also) - opened), outcome.unopened - opened


def _path(plan: PlanCandidate) -> Iterable[PlanCandidate]:
    """The nodes from a root to a plan."""
    layout, sharding, pipeline = plan.layout, plan.sharding, plan.pipeline
    return (
        PlanCandidate(layout),
        PlanCandidate(layout, sharding),
        PlanCandidate(layout, sharding, pipeline),
        plan,
    )


def _proved(outcome: _Outcome, plans: Sequence[RankedPlan], unexamined: int) -> float:
    """What no plan of the tree is below; at most the best step, which may be of a plan from outside of it."""
    steps = [plan.prediction.step_seconds for plan in plans if plan.in_space]
    inside, fastest = min(steps, default=inf), plans[0].prediction.step_seconds if plans else inf
    bound = checked_bound(outcome.lower_bound, inside, "all plans of the search")
    return min(inside if unexamined == 0 else bound, fastest)
