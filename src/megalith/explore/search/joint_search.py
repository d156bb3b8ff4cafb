"""The joint search over placement, schedule and network.

    options that no plan needs are dropped (dominance.py)
    the tree of the rest is searched best-first by lower bounds (space.py, floors.py, tree.py)
    the best plans are moved about: single layers, buckets, and whatever the budget left (climb.py)
    the answer is explained, and asked what a better cluster would bring (explain.py, sensitivity.py)

With a deadline the cheapest plan that meets it is best. The price an hour belongs to the cluster and not to
the plan, so that on one cluster the cheapest plan is the fastest; clusters of fewer sites are searched too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from megalith.core.bounds import checked_bound, gap_to
from megalith.core.errors import PlanError
from megalith.explore.job import Job, TransformerModel
from megalith.explore.load import resolve_cluster
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction
from megalith.explore.search.space.decisions import Choice
from megalith.explore.search.algorithms.local_search import Climb, climb
from megalith.explore.search.space.dominance import undominated
from megalith.explore.search.analysis.explain import explain
from megalith.explore.search.bounds.lower_bounds import Floors
from megalith.explore.search.evaluate import Predict, Verdict, judge
from megalith.explore.search.analysis.infeasible import nothing_fits
from megalith.explore.search.analysis.pareto import pareto_front
from megalith.explore.search.analysis.prices import cost_per_step, cross_site_bytes, smaller_clusters
from megalith.explore.search.result import Plan, SearchResult
from megalith.explore.search.analysis.sensitivity import sensitivities
from megalith.explore.search.space.search_space import Restriction, Space
from megalith.explore.search.algorithms.best_first import Outcome, best_first
from megalith.explore.search.space.baseline_layouts import copies_across, stages_across
from megalith.explore.search.algorithms.worker_pool import Workers
from megalith.hardware.machine import usable_cores

TOP = 5
BATCH = 8
BUDGET = 600
_CLIMB_BUDGET = 60
_FIRST_SHARE = 0.1
"""Of the budget, for each of the usual layouts that a search begins with."""
_CLOSING = 5000
"""Nodes that are opened when the budget is spent, for the sake of the bound."""
_STARTS = 3
_SLACK = 0.02
"""Leaves this near to the best are evaluated too, so that the next best is known."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """All plans judged on one cluster, fastest first, and what is proved of the others."""

    plans: tuple[Plan, ...]
    lower_bound_seconds: float
    examined: int
    pruned: int
    unexamined: int


def search_space(
    space: Space,
    predict: Predict,
    floors: Floors,
    *,
    begin: Sequence[Restriction] = (),
    budget: float = BUDGET,
    workers: int = 1,
    say: Say = lambda _: None,
) -> Found:
    """Searches one space: parts of it to begin with, then the whole tree, then moves from the best plans."""
    with Workers(partial(judge, space, predict), workers) as pool:
        climbing = Climb({})

        def evaluate(leaves: Sequence[Choice]) -> list[tuple[float, Verdict]]:
            fresh = [leaf for leaf in leaves if leaf not in climbing.verdicts]
            climbing.verdicts |= zip(fresh, pool.ask(fresh), strict=True)
            return [(climbing.verdicts[leaf].seconds, climbing.verdicts[leaf]) for leaf in leaves]

        def explore(
            part: Space, share: float, incumbent: float = inf, closing: int = 0
        ) -> Outcome[Choice, Verdict]:
            return best_first(
                part.roots(),
                bound=floors,
                branch=part.branch,
                leaves=part.leaves,
                evaluate=evaluate,
                guess=floors.guess,
                family=_family,
                work=space.work,
                batch=BATCH,
                budget=share * budget,
                slack=_SLACK,
                incumbent=incumbent,
                closing=closing,
            )

        for only in begin:
            explore(Space(space.job, space.cluster, replace(only, fabrics=space.fabrics)), _FIRST_SHARE)
        known = min((verdict.seconds for verdict in climbing.verdicts.values()), default=inf)
        outcome = explore(space, 1.0, known, _CLOSING)
        say(f"{outcome.evaluated} plans simulated, {outcome.pruned} ruled out, {outcome.unopened} left")
        feasible = [one for one, verdict in climbing.verdicts.items() if verdict.seconds < inf]
        feasible.sort(key=lambda one: climbing.verdicts[one].seconds)
        climb(
            space,
            _apart(feasible)[:_STARTS],
            climbing,
            pool.ask,
            floors,
            budget=max(_CLIMB_BUDGET, budget / 3),
            work=space.work,
            inside_tree=not outcome.exact,
        )
    source = "proved best-first search" if outcome.exact else "best-first search"
    judged = sorted(climbing.verdicts.items(), key=lambda item: item[1].seconds)
    plans = tuple(
        _plan(space, choice, verdict, climbing.origin.get(choice, ""), source)
        for choice, verdict in judged
        if verdict.seconds < inf
    )
    pruned, unexamined = _counted(space, outcome, climbing.verdicts)
    return Found(plans, _proved(outcome, plans, unexamined), len(climbing.verdicts), pruned, unexamined)


def _counted(space: Space, outcome: Outcome[Choice, Verdict], verdicts: Iterable[Choice]) -> tuple[int, int]:
    """Plans ruled out and plans left over, once those are taken off that were judged outside of the tree's
    search: by one of its parts before it, or by moves after it."""
    evaluated = {one.leaf for one in outcome.found}
    also = [plan for plan in verdicts if plan not in evaluated and space.holds(plan)]
    left = set(outcome.open)
    opened = sum(any(node in left for node in _path(plan)) for plan in also)
    return outcome.pruned - (len(also) - opened), outcome.unopened - opened


def _path(plan: Choice) -> Iterable[Choice]:
    """The nodes from a root to a plan."""
    layout, sharing, rhythm = plan.layout, plan.sharing, plan.rhythm
    return Choice(layout), Choice(layout, sharing), Choice(layout, sharing, rhythm), plan


def _proved(outcome: Outcome[Choice, Verdict], plans: Sequence[Plan], unexamined: int) -> float:
    """What no plan of the tree is below; at most the best step, which may be of a plan from outside of it."""
    steps = [plan.prediction.step_seconds for plan in plans if plan.in_space]
    inside, fastest = min(steps, default=inf), plans[0].prediction.step_seconds if plans else inf
    bound = checked_bound(outcome.lower_bound, inside, "all plans of the search")
    return min(inside if unexamined == 0 else bound, fastest)


def _family(choice: Choice) -> object:
    """Plans whose bounds are about as loose; None before the schedule is chosen."""
    if choice.rhythm is None or choice.sharing is None:
        return None
    return choice.rhythm.schedule, choice.rhythm.vpp > 1, choice.sharing.sharding


def _plan(space: Space, choice: Choice, verdict: Verdict, move: str, source: str) -> Plan:
    prediction = verdict.prediction
    assert prediction is not None
    return Plan(
        job=space.plan(choice),
        prediction=prediction,
        provenance=f"local move ({move}) after {source}" if move else source,
        cross_site_bytes=cross_site_bytes(space.cluster, prediction),
        cost_per_step=cost_per_step(space.cluster, prediction),
        in_space=space.holds(choice),
    )


def _apart(choices: Iterable[Choice]) -> list[Choice]:
    """The first of each kind of plan, so that runners-up are more than the same plan with other details."""
    kinds: dict[object, Choice] = {}
    for choice in choices:
        assert choice.rhythm is not None
        rhythm = choice.rhythm.schedule, choice.rhythm.vpp, choice.rhythm.micro_batch
        kinds.setdefault((choice.layout, choice.sharing, rhythm), choice)
    return list(kinds.values())


def top_plans(plans: Iterable[Plan], count: int = TOP) -> tuple[Plan, ...]:
    """The first plans of different kinds: another placement, sharding, schedule or micro-batch each (of a
    DLRM, which has none of these, another network). Plans with the same outcome in every figure are one."""
    kinds: dict[object, Plan] = {}
    outcomes: list[Prediction] = []
    for plan in plans:
        parallel, training = plan.job.parallel, plan.job.training
        assert parallel is not None
        sizes = parallel.tp, parallel.cp, parallel.ep, parallel.pp, parallel.vpp, parallel.micro_batch
        kind = plan.job.cluster, sizes, parallel.placement, parallel.sharding, training.schedule
        key = *kind, training.local_steps, None if _is_transformer(plan) else (plan.job.network, training)
        if key in kinds or _outcome(plan) in outcomes:
            continue
        kinds[key] = plan
        outcomes.append(_outcome(plan))
        if len(kinds) == count:
            break
    return tuple(kinds.values())


def _is_transformer(plan: Plan) -> bool:
    return isinstance(plan.job.model, TransformerModel)


def _outcome(plan: Plan) -> Prediction:
    """What is predicted, without what the plan itself says."""
    named = {"micro_batch": 0, "recompute": "", "schedule": "", "vpp": 0, "sharding": ""}
    return replace(plan.prediction, **named)  # type: ignore[arg-type]


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
    processes = workers or min(4, usable_cores())
    deadline = job.constraints.deadline_seconds
    clusters = list(smaller_clusters(job)) if deadline is not None else [job]
    answers: list[Found] = []
    for one in clusters:
        cluster = resolve_cluster(one.cluster, one.hardware)
        say(f"searching {cluster.devices} devices")
        found = search_job(one, workers=processes, budget=budget, say=say)
        answers.append(found)
        if not found.plans or found.plans[0].prediction.step_seconds > (deadline or inf):
            # Fewer devices than those that were too few will not do either.
            break
    plans = [plan for found in answers for plan in found.plans]
    if not plans:
        raise PlanError(nothing_fits(job))
    plans = _in_order(plans, deadline)
    top = top_plans(plans)
    step = top[0].prediction.step_seconds
    chosen = next(found for found in answers if top[0] in found.plans)
    bound = checked_bound(chosen.lower_bound_seconds, step, "the search")
    cluster = resolve_cluster(top[0].job.cluster, job.hardware)
    say("asking what a better cluster would bring")
    alike = [plan for plan in top if plan.job.cluster == top[0].job.cluster]
    changes = sensitivities(alike, cluster)
    counts = {
        "examined": sum(found.examined for found in answers),
        "pruned": sum(found.pruned for found in answers),
        "unexamined": sum(found.unexamined for found in answers),
    }
    gap = gap_to(bound, step)
    return SearchResult(
        best=top[0],
        top=top,
        pareto=tuple(pareto_front(plans, _measures)),
        lower_bound_seconds=bound,
        gap=gap,
        sensitivities=changes,
        explanation=explain(top, changes, lower_bound_seconds=bound, gap=gap, **counts),
        seconds=time.perf_counter() - started,
        **counts,
    )


def search_job(
    job: Job,
    *,
    only: Restriction | None = None,
    workers: int = 1,
    budget: float = BUDGET,
    say: Say = lambda _: None,
) -> Found:
    """All of one job's space on its cluster, or the part of it that `only` leaves."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    listed = Space(job, cluster, only)
    network = tuple(undominated(listed.fabrics, cluster))
    space = Space(job, cluster, replace(only or Restriction(), fabrics=network))
    floors = Floors(space)
    begin = (copies_across(cluster), stages_across(cluster)) if only is None and space.transformer else ()
    found = search_space(space, predict, floors, begin=begin, workers=workers, budget=budget, say=say)
    dropped = len(listed.fabrics) / len(network)
    # Options that dominance dropped would each have been a plan.
    total = found.examined + found.pruned + found.unexamined
    return replace(found, pruned=found.pruned + int(total * (dropped - 1)))


def _in_order(plans: Sequence[Plan], deadline: float | None) -> list[Plan]:
    if deadline is None:
        return sorted(plans, key=lambda plan: plan.prediction.step_seconds)
    in_time = [plan for plan in plans if plan.prediction.step_seconds <= deadline]
    if not in_time:
        fastest = min(plan.prediction.step_seconds for plan in plans)
        raise PlanError(
            f"No plan meets constraints.deadline_seconds={deadline:g}: the fastest step takes {fastest:.4g} "
            f"s; allow {fastest:.4g} s or add devices."
        )
    return sorted(in_time, key=lambda plan: (plan.cost_per_step, plan.prediction.step_seconds))


def _measures(plan: Plan) -> tuple[float, float, float, float]:
    prediction = plan.prediction
    memory = prediction.memory_bytes_per_device
    return prediction.step_seconds, memory, plan.cross_site_bytes, plan.cost_per_step
