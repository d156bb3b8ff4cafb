"""When nothing fits: the nearest change that would make something fit, in one sentence.

Tried in the order of what costs least: another global batch, an option given free, no margin, more devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, inf

from megalith.core.units import format_bytes
from megalith.explore.job import Job
from megalith.explore.load import resolve_cluster
from megalith.explore.predict import predict
from megalith.explore.search.analysis.prices import with_count
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.evaluate import evaluate
from megalith.explore.search.space.decisions import PlanCandidate
from megalith.explore.search.space.options import global_batch_of
from megalith.explore.search.space.restriction import Restriction
from megalith.explore.search.space.search_space import SearchSpace

_TRIES = 400
_MOST_TIMES = 64


def explain_infeasible(job: Job) -> str:
    """One sentence: why no plan fits, and the nearest change that would make one fit."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    space = _lean(job)
    model = job.model.name or "The model"
    where = f"{cluster.devices} x {cluster.device.name}"
    if not any(True for _ in space.roots()):
        why = f"No way of cutting {model} and global_batch={space.global_batch} divides {where}"
    else:
        room = cluster.device.bytes * (1 - job.constraints.memory_margin)
        least = _least_memory(space)
        needs = (
            f" (the leanest plan needs {format_bytes(least)} of {format_bytes(room)})" if least < inf else ""
        )
        why = f"{model} does not fit on {where}{needs}"
    return f"{why}; {_change(job)}."


def _change(job: Job) -> str:
    for batch in _near_batches(job):
        if fits(_with_batch(job, batch)):
            return f"take {'parallel.' if job.parallel else ''}global_batch={batch}"
    for name in job.constraints.fixed:
        left = {key: value for key, value in job.constraints.fixed.items() if key != name}
        if fits(_constrained(job, fixed=left)):
            return f"leave {name} free in constraints.fixed"
    if job.constraints.forbidden_crossings and fits(_constrained(job, forbidden_crossings=())):
        return "allow one of constraints.forbidden_crossings"
    if job.constraints.memory_margin and fits(_constrained(job, memory_margin=0.0)):
        return "lower constraints.memory_margin"
    outermost = len(job.cluster.levels) - 1
    count, times = job.cluster.levels[outermost].count, 2
    while times <= _MOST_TIMES:
        larger = with_count(job, outermost, times * count)
        if fits(larger):
            devices = resolve_cluster(larger.cluster, larger.hardware).devices
            return f"take {devices} devices (cluster.levels.{outermost}.count={times * count})"
        times *= 2
    fewer = count // 2
    while fewer:
        if count % fewer == 0 and fits(with_count(job, outermost, fewer)):
            return f"take fewer devices (cluster.levels.{outermost}.count={fewer}) or a larger global_batch"
        fewer //= 2
    return "take devices with more memory or a smaller model"


def fits(job: Job) -> bool:
    """Whether any of the leanest plans runs."""
    space = _lean(job)
    return any(evaluate(space, predict, plan).seconds < inf for plan in _leanest(space))


def _lean(job: Job) -> SearchSpace:
    """Plans that save memory before anything else."""
    cluster = resolve_cluster(job.cluster, job.hardware)
    space = SearchSpace(job, cluster)
    plain = tuple(space.networks[:1])
    return SearchSpace(
        job,
        cluster,
        Restriction(pipeline=lambda option: option.schedule in ("1f1b", "zb-h1"), networks=plain),
    )


def _leanest(space: SearchSpace) -> Iterator[PlanCandidate]:
    """A few plans, those that cut the model into the most pieces first, whose state fits by itself."""
    bounds = LowerBounds(space)
    tried = 0
    roots = sorted(space.roots(), key=lambda root: (-root.layout.tp * root.layout.pp, -root.layout.cp))
    for root in roots:
        for node in reversed(space.branch(root) or []):
            if bounds(node) == inf:
                continue
            for plan in (space.branch(node) or [])[:1]:
                for leaf in space.branch(plan) or []:
                    tried += 1
                    yield leaf
                    if tried == _TRIES:
                        return


def _least_memory(space: SearchSpace) -> float:
    least = inf
    for number, plan in enumerate(_leanest(space)):
        prediction = evaluate(space, predict, plan).prediction
        if prediction is not None:
            least = min(least, prediction.memory_bytes_per_device)
        if number == _TRIES // 4:
            break
    return least


def _near_batches(job: Job) -> list[int]:
    """Batches near the one given that share more divisors with the cluster, nearest first."""
    batch = global_batch_of(job)
    counts = [level.count for level in job.cluster.levels]
    batches = set()
    step = 1
    for count in reversed(counts):
        step *= count // gcd(count, step)
        if step <= 4 * batch:
            below = batch // step * step
            batches |= {below, below + step}
    batches -= {0, batch}
    return sorted(batches, key=lambda other: (abs(other - batch), other))


def _with_batch(job: Job, batch: int) -> Job:
    parallel = job.parallel and job.parallel.model_copy(update={"global_batch": batch})
    return job.model_copy(update={"global_batch": batch, "parallel": parallel})


def _constrained(job: Job, **changes: object) -> Job:
    return job.model_copy(update={"constraints": job.constraints.model_copy(update=changes)})
