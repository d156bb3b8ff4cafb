"""Several jobs on one wide-area link: what each gets of it, and what its step becomes.

A job leaves the link idle while it computes, so others do not halve its rate: it gets what they leave on
average, and no less than an equal share, which fair queueing gives it while all send. Rates and steps depend
on each other; a few rounds settle them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megalith.core.errors import ConfigError
from megalith.explore.job import Job
from megalith.explore.load import resolve_cluster
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class SharedLink:
    """One of several jobs on a link: its step alone and beside the others, and what it gets of the link."""

    name: str
    alone: Prediction
    shared: Prediction
    gigabits_per_second: float
    """What it can use of the link."""
    mean_gigabits_per_second: float
    """What it sends on average."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {
            "name": self.name,
            "alone_seconds": self.alone.step_seconds,
            "shared_seconds": self.shared.step_seconds,
            "slowdown": self.shared.step_seconds / self.alone.step_seconds - 1,
            "gigabits_per_second": self.gigabits_per_second,
            "mean_gigabits_per_second": self.mean_gigabits_per_second,
        }


def predict_shared(jobs: Sequence[Job]) -> list[SharedLink]:
    """The steps of jobs whose outermost links are one and the same; ConfigError where they are not."""
    clusters = [resolve_cluster(job.cluster, job.hardware) for job in jobs]
    links = {(cluster.levels[-1].name, cluster.levels[-1].link.bytes_per_second) for cluster in clusters}
    if len(jobs) < 2 or len(links) != 1:
        raise ConfigError(
            "Jobs that share a link need the same outermost level (name and rate) in each; "
            f"these have {', '.join(sorted(name for name, _ in links))}."
        )
    level, capacity = links.pop()
    alone = [predict(job) for job in jobs]
    steps, rates = list(alone), [capacity] * len(jobs)
    for _ in range(_ROUNDS):
        mean = [step.level_bytes.get(level, 0.0) / step.step_seconds for step in steps]
        rates = [max(capacity / len(jobs), capacity - (sum(mean) - own)) for own in mean]
        steps = [predict(_with_rate(job, rate)) for job, rate in zip(jobs, rates, strict=True)]
    mean = [step.level_bytes.get(level, 0.0) / step.step_seconds for step in steps]
    return [
        SharedLink(job.name or f"job {number + 1}", before, after, rate * 8 / 1e9, sent * 8 / 1e9)
        for number, (job, before, after, rate, sent) in enumerate(
            zip(jobs, alone, steps, rates, mean, strict=True)
        )
    ]


def _with_rate(job: Job, bytes_per_second: float) -> Job:
    *inner, outer = job.cluster.levels
    changed = outer.model_copy(update={"gigabits_per_second": bytes_per_second * 8 / 1e9})
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"levels": (*inner, changed)})})
