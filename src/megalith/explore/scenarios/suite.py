"""The suite: every scenario's best plan beside the two baselines, and by which mechanism it gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from megalith.core.bounds import checked_bound, gap_to
from megalith.core.errors import ConfigError, PlanError, nearest
from megalith.explore.job import Job, Routing
from megalith.explore.load import load_job, resolve_cluster, scenario_names
from megalith.explore.prediction import Prediction
from megalith.explore.scenarios.baselines import production, production_space
from megalith.explore.scenarios.crosspipe import crosspipe
from megalith.explore.search.cluster_search import search_job
from megalith.explore.search.joint_search import search
from megalith.explore.search.result import RankedPlan, SearchResult
from megalith.explore.search.space.restriction import Restriction

PAPER_OVER_PRODUCTION = 0.6462
PAPER_OVER_STATE_OF_THE_ART = 0.3759
"""What ScaleAcross Explorer reports at best (arXiv 2605.24326)."""
_BUDGET = 600
_ABLATION_BUDGET = 300

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """One scenario; a speed-up of 0.5 means that 1.5 times as many steps are done in the same time."""

    name: str
    devices: int
    best: RankedPlan
    gap: float
    """Of the best plan to the lower bound of the search; 0 where a baseline beats all that it may choose."""
    production: RankedPlan | None
    """None: no copy of the model fits in a site."""
    crosspipe: RankedPlan | None
    seconds: float
    """What the search took."""

    @property
    def over_production(self) -> float | None:
        """Speed-up of the best plan over the production-like one; None if that does not fit."""
        return _speed_up(self.production, self.best)

    @property
    def over_crosspipe(self) -> float | None:
        """Speed-up of the best plan over the CrossPipe-like one; None if that does not fit."""
        return _speed_up(self.crosspipe, self.best)

    def to_dict(self) -> dict[str, Any]:
        """One entry of what `explore scenarios --json` prints."""
        return {
            "name": self.name,
            "devices": self.devices,
            "over_production": self.over_production,
            "over_crosspipe": self.over_crosspipe,
            "gap": self.gap,
            "seconds": self.seconds,
            "best": _summary(self.best),
            "production": _summary(self.production) if self.production else None,
            "crosspipe": _summary(self.crosspipe) if self.crosspipe else None,
        }


def scenario_jobs(names: Sequence[str] | None = None) -> Iterator[Job]:
    """The jobs of the suite, or those named."""
    known = scenario_names()
    for name in names or known:
        if name not in known:
            raise ConfigError(f"There is no scenario '{name}'; {nearest(name, known)}")
        yield load_job(name)


def check_routing(name: str | None) -> Routing | None:
    """The routing of this name; ConfigError where there is none."""
    names: tuple[Routing, ...] = get_args(Routing)
    if name is not None and name not in names:
        raise ConfigError(f"--routing {name} is no routing; {nearest(name, names)}")
    return next((known for known in names if known == name), None)


def run_scenarios(
    progress: Progress | None = None, names: Sequence[str] | None = None, *, workers: int | None = None
) -> list[ScenarioRow]:
    """Rows of the scenarios named, or of all."""
    rows = []
    for job in scenario_jobs(names):
        if progress is not None:
            progress(job.name)
        rows.append(run_scenario(job, workers=workers))
    return rows


def run_scenario(
    job: Job, *, workers: int | None = None, budget: int = _BUDGET, routing: Routing | None = None
) -> ScenarioRow:
    """A scenario's best plan beside the two baselines, all with the same budget.

    With `routing` all three use that; without it the search chooses, and baselines use ECMP, as it comes.
    """
    asked = job
    if routing is not None:
        fixed = {**job.constraints.fixed, "routing": routing}
        asked = job.model_copy(update={"constraints": job.constraints.model_copy(update={"fixed": fixed})})
    result = search(asked, workers=workers, budget=budget)
    used = routing or "ecmp"
    baselines = (
        _or_none(partial(production, budget=budget, routing=used), job),
        _or_none(partial(crosspipe, budget=budget, routing=used), job),
    )
    # The baselines' plans are plans of the joint space too, even if the budget did not reach them.
    best = min(
        (plan for plan in (result.best, *baselines) if plan), key=lambda plan: plan.prediction.step_seconds
    )
    return ScenarioRow(
        name=job.name,
        devices=resolve_cluster(job.cluster, job.hardware).devices,
        best=best,
        gap=scenario_gap(result, best, baselines),
        production=baselines[0],
        crosspipe=baselines[1],
        seconds=result.seconds,
    )


def ablation(job: Job, *, budget: int = _ABLATION_BUDGET) -> dict[str, float | None]:
    """Speed-ups over production when one dimension alone is optimised, and when all are together."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    base = production_space(cluster)
    free = Restriction()
    spaces = {
        "placement": replace(base, layout=free.layout, sharding=free.sharding),
        "schedule": replace(base, pipeline=free.pipeline),
        "network": replace(base, networks=free.networks),
        "joint": free,
    }
    start = _or_none(production, job)
    speed_ups: dict[str, float | None] = {}
    for name, only in spaces.items():
        plans = search_job(job, only=only, budget=budget).plans
        speed_ups[name] = _speed_up(start, plans[0]) if plans else None
    return speed_ups


def scenario_gap(result: SearchResult, best: RankedPlan, baselines: Sequence[RankedPlan | None]) -> float:
    """Of the best plan to the bound of the search, to which every plan of its space is held."""
    bound, step = result.lower_bound_seconds, best.prediction.step_seconds
    for plan in baselines:
        if plan is not None and plan.in_space and plan.job.cluster == result.best.job.cluster:
            checked_bound(
                bound, plan.prediction.step_seconds, f"the search, by a baseline ({plan.provenance})"
            )
    return gap_to(min(bound, step), step)


def _speed_up(baseline: RankedPlan | None, best: RankedPlan) -> float | None:
    return baseline.prediction.step_seconds / best.prediction.step_seconds - 1 if baseline else None


def _or_none(find: Callable[[Job], RankedPlan], job: Job) -> RankedPlan | None:
    try:
        return find(job)
    except PlanError:
        return None


def _summary(plan: RankedPlan) -> dict[str, Any]:
    parallel, training, network = plan.job.parallel, plan.job.training, plan.job.network
    assert parallel is not None
    prediction: Prediction = plan.prediction
    return {
        "step_seconds": prediction.step_seconds,
        "mfu": prediction.mfu,
        "memory_bytes_per_device": prediction.memory_bytes_per_device,
        "cross_site_bytes": plan.cross_site_bytes,
        "bound_by": prediction.bound_by,
        "breakdown": prediction.breakdown,
        "provenance": plan.provenance,
        "parallel": parallel.model_dump(mode="json", exclude={"global_batch"}),
        "schedule": training.schedule,
        "extra_in_flight": training.extra_in_flight,
        "recompute": prediction.recompute,
        "network": network.model_dump(mode="json"),
    }
