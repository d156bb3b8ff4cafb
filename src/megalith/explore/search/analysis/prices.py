"""What a cluster costs an hour, a step costs, and what leaves a site."""

from __future__ import annotations

from collections.abc import Iterator

from megalith.explore.job import Job
from megalith.explore.prediction import Prediction
from megalith.hardware.cluster import Cluster


def price_per_hour(cluster: Cluster) -> float:
    """All devices, and the link of every member of every level."""
    links = sum(
        level.link.price_per_hour * cluster.devices / cluster.devices_within(index - 1)
        for index, level in enumerate(cluster.levels)
        if level.count > 1
    )
    return cluster.devices * cluster.device.price_per_hour + links


def cost_per_step(cluster: Cluster, prediction: Prediction) -> float:
    """What the whole cluster costs for the time of a step."""
    return price_per_hour(cluster) * prediction.step_seconds / 3600


def cross_site_bytes(cluster: Cluster, prediction: Prediction) -> float:
    """Bytes a step out of the busiest member of the outermost level that has several."""
    outermost = next((level.name for level in reversed(cluster.levels) if level.count > 1), "")
    return prediction.level_bytes.get(outermost, 0.0)


def smaller_clusters(job: Job) -> Iterator[Job]:
    """The same job on fewer sites, and on fewer members of the level below; the whole cluster first."""
    yield job
    levels = job.cluster.levels
    outermost = max((index for index, level in enumerate(levels) if level.count > 1), default=0)
    for count in range(levels[outermost].count - 1, 0, -1):
        yield with_count(job, outermost, count)
    if outermost > 0:
        below = with_count(job, outermost, 1)
        count = levels[outermost - 1].count
        while count % 2 == 0 and count > 1:
            count //= 2
            yield with_count(below, outermost - 1, count)


def with_count(job: Job, level: int, count: int) -> Job:
    """The job on a cluster with another number of members in one level."""
    levels = list(job.cluster.levels)
    levels[level] = levels[level].model_copy(update={"count": count})
    return job.model_copy(update={"cluster": job.cluster.model_copy(update={"levels": tuple(levels)})})
