"""Which of the plans evaluated are shown, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from megalith.core.errors import PlanError
from megalith.explore.job import TransformerModel
from megalith.explore.prediction import Prediction
from megalith.explore.search.result import RankedPlan
from megalith.explore.search.space.decisions import PlanCandidate

TOP = 5


def order_plans(plans: Sequence[RankedPlan], deadline: float | None) -> list[RankedPlan]:
    """Fastest first; with a deadline the cheapest of those that meet it. PlanError if none does."""
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


def top_plans(plans: Iterable[RankedPlan], count: int = TOP) -> tuple[RankedPlan, ...]:
    """The first plans of different kinds: another placement, sharding, schedule or micro-batch each (of a
    DLRM, which has none of these, another network). Plans with the same outcome in every figure are one."""
    kinds: dict[object, RankedPlan] = {}
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


def first_of_each_kind(candidates: Iterable[PlanCandidate]) -> list[PlanCandidate]:
    """The first of each kind of plan, so that several are more than the same plan with other details."""
    kinds: dict[object, PlanCandidate] = {}
    for candidate in candidates:
        assert candidate.pipeline is not None
        pipeline = candidate.pipeline.schedule, candidate.pipeline.vpp, candidate.pipeline.micro_batch
        kinds.setdefault((candidate.layout, candidate.sharding, pipeline), candidate)
    return list(kinds.values())


def pareto_measures(plan: RankedPlan) -> tuple[float, float, float, float]:
    """What is traded against what: step, memory, traffic between sites, cost."""
    prediction = plan.prediction
    memory = prediction.memory_bytes_per_device
    return prediction.step_seconds, memory, plan.cross_site_bytes, plan.cost_per_step


def _is_transformer(plan: RankedPlan) -> bool:
    return isinstance(plan.job.model, TransformerModel)


def _outcome(plan: RankedPlan) -> Prediction:
    """What is predicted, without what the plan itself says."""
    named = {"micro_batch": 0, "recompute": "", "schedule": "", "vpp": 0, "sharding": ""}
    return replace(plan.prediction, **named)  # type: ignore[arg-type]
