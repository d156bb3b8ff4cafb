"""Sentences that say why a plan is the answer: what bounds it, what the next best loses, what would help."""

from __future__ import annotations

from collections.abc import Sequence

from megalith.core.units import format_bytes, format_count, format_duration
from megalith.explore.job import Job
from megalith.explore.search.result import RankedPlan, Sensitivity

_LIMITS = {
    "compute": "by what its devices compute",
    "memory-bandwidth": "by the devices' memory bandwidth",
    "bubble": "by the pipeline's bubble",
}


def explain(
    top: Sequence[RankedPlan],
    sensitivities: Sequence[Sensitivity],
    *,
    lower_bound_seconds: float,
    gap: float,
    examined: int,
    pruned: int,
    unexamined: int,
) -> tuple[str, ...]:
    """Why the first plan is the answer, how sure that is, what comes next and what would help."""
    best = top[0]
    sentences = [_what_bounds(best), _how_sure(lower_bound_seconds, gap, examined, pruned, unexamined)]
    if best.changes_mathematics:
        training = best.job.training
        what = [f"local_steps={training.local_steps}"] if training.local_steps > 1 else []
        what += [f"compression={training.compression}"] if training.compression != "none" else []
        sentences.append(f"It changes the mathematics of training: {' and '.join(what)}.")
    if len(top) > 1:
        after = top[1]
        loss = after.prediction.step_seconds / best.prediction.step_seconds - 1
        slower = f"{loss:.1%} slower" if loss >= 0 else f"{-loss:.1%} faster but dearer"
        sentences.append(f"The next best is {slower}: {', '.join(differences(best.job, after.job))}.")
    helpful = sorted(
        (change for change in sensitivities if change.gain > 0.001), key=lambda change: -change.gain
    )
    sentences += [_what_helps(change) for change in helpful[:3]]
    if sensitivities and not helpful:
        sentences.append(
            "Twice as much of any single part of the cluster would save less than 0.1% of the step."
        )
    return tuple(sentences)


def differences(job: Job, other: Job) -> list[str]:
    """What the second plan does otherwise, as `name=value`, named as in the job."""
    changed = []
    for part in ("parallel", "training", "network"):
        before, after = getattr(job, part), getattr(other, part)
        for name in type(after).model_fields:
            value = getattr(after, name)
            if getattr(before, name) != value:
                shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
                changed.append(f"{name}={shown}")
    counts = [level.count for level in job.cluster.levels], [level.count for level in other.cluster.levels]
    if counts[0] != counts[1]:
        changed.append("devices=" + "x".join(map(str, counts[1])))
    return changed or ["the same plan"]


def _what_bounds(plan: RankedPlan) -> str:
    prediction = plan.prediction
    step = prediction.step_seconds
    parts = sorted(prediction.breakdown.items(), key=lambda part: -part[1])
    shown = ", ".join(
        f"{name.replace('_', ' ')} {seconds / step:.0%}" for name, seconds in parts[:3] if seconds
    )
    limit = _LIMITS.get(prediction.bound_by)
    if limit is None:
        level = prediction.bound_by.removeprefix("link:")
        carried = prediction.level_bytes.get(level, 0.0)
        limit = (
            f"by the links of level '{level}', over which {format_bytes(carried)} leave its busiest member"
        )
    return f"The step of {format_duration(step)} is bound {limit} ({shown})."


def _how_sure(bound: float, gap: float, examined: int, pruned: int, unexamined: int) -> str:
    plans = examined + pruned + unexamined
    space = f"{format_count(plans)} plans"
    if unexamined == 0:
        return (
            f"Of {space} none is faster: {examined} were simulated and the rest ruled out by dominance and "
            "lower bounds (moving single layers between stages was tried by local moves)."
        )
    return (
        f"Of {space} {examined} were simulated and {format_count(pruned)} ruled out; nothing can be faster "
        f"than {bound:.4g} s, so that at most {gap:.1%} of the step is left to gain."
    )


def _what_helps(change: Sensitivity) -> str:
    kind, _, name = change.part.partition(":")
    what = {
        "bandwidth": f"Twice the bandwidth of the links of {kind} '{name}'",
        "latency": f"Half the latency of the links of {kind} '{name}'",
        "flops": f"Twice the FLOP/s of the {kind}",
        "memory": f"Twice the memory of the {kind}",
        "memory_bandwidth": f"Twice the memory bandwidth of the {kind}",
    }[change.quantity]
    again = "" if change.plan == 0 else f" (with plan {change.plan + 1} of the list)"
    return f"{what} would save {change.gain:.1%} of the step{again}."
