"""The joint search over placement, schedule and network.

The space of the job on its cluster is searched (cluster_search.py), the best plans are ranked (ranking.py),
and the answer is explained and asked what a better cluster would bring (analysis/).

With a deadline the cheapest plan that meets it is best. The price an hour belongs to the cluster and not to
the plan, so that on one cluster the cheapest plan is the fastest; clusters of fewer sites are searched too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

from megalith.core.bounds import checked_bound, gap_to
from megalith.core.errors import PlanError
from megalith.explore.job import Job
from megalith.explore.load import resolve_cluster
from megalith.explore.search.analysis.explain import explain
from megalith.explore.search.analysis.infeasible import explain_infeasible
from megalith.explore.search.analysis.pareto import pareto_front
from megalith.explore.search.analysis.prices import smaller_clusters
from megalith.explore.search.analysis.sensitivity import sensitivities
from megalith.explore.search.cluster_search import BUDGET, Say, SpaceResult, search_job
from megalith.explore.search.ranking import order_plans, pareto_measures, top_plans
from megalith.explore.search.result import SearchResult
from megalith.hardware.machine import usable_cores


def search(
    job: Job,
    *,
    progress: Say | None = None,
    workers: int | None = None,
    budget: float = BUDGET,
) -> SearchResult:
    """The best plan for a job, the runners-up, and what is known about the rest.

    `budget` is how many plans are simulated at most before local moves take over; the answer is the same for
    any number of `workers`. PlanError says what to change when nothing fits.
    """
    started = time.perf_counter()
    say = progress or (lambda _: None)
    results = _search_clusters(job, workers or min(4, usable_cores()), budget, say)
    plans = [plan for result in results for plan in result.plans]
    if not plans:
        raise PlanError(explain_infeasible(job))
    plans = order_plans(plans, job.constraints.deadline_seconds)
    top = top_plans(plans)
    step = top[0].prediction.step_seconds
    chosen = next(result for result in results if top[0] in result.plans)
    bound = checked_bound(chosen.lower_bound_seconds, step, "the search")
    cluster = resolve_cluster(top[0].job.cluster, job.hardware)
    say("asking what a better cluster would bring")
    alike = [plan for plan in top if plan.job.cluster == top[0].job.cluster]
    changes = sensitivities(alike, cluster)
    counts = {
        "examined": sum(result.examined for result in results),
        "pruned": sum(result.pruned for result in results),
        "unexamined": sum(result.unexamined for result in results),
    }
    gap = gap_to(bound, step)
    return SearchResult(
        best=top[0],
        top=top,
        pareto=tuple(pareto_front(plans, pareto_measures)),
        lower_bound_seconds=bound,
        gap=gap,
        sensitivities=changes,
        explanation=explain(top, changes, lower_bound_seconds=bound, gap=gap, **counts),
        seconds=time.perf_counter() - started,
        **counts,
    )


def _search_clusters(job: Job, workers: int, budget: float, say: Say) -> Sequence[SpaceResult]:
    """The whole cluster's result; with a deadline also those of smaller ones, as long as they meet it."""
    deadline = job.constraints.deadline_seconds
    results: list[SpaceResult] = []
    for smaller in smaller_clusters(job) if deadline is not None else [job]:
        cluster = resolve_cluster(smaller.cluster, smaller.hardware)
        say(f"searching {cluster.devices} devices")
        result = search_job(smaller, workers=workers, budget=budget, say=say)
        results.append(result)
        if not result.plans or result.plans[0].prediction.step_seconds > (deadline or inf):
            # Fewer devices than those that were too few will not do either.
            break
    return results
