"""One of several sites as a cluster of its own kind: as if all sites were like it.

Costs of a site's devices, nodes and zones are those of such a cluster; only what joins the sites is given.
"""

from __future__ import annotations

from pathlib import Path

from megalith.explore.job import ClusterSpec, Job, LevelSpec, Parallel
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Level
from megalith.hardware.sites import LEVEL_NAME


def job_beside(job: Job, site: int, link: Level, count: int, parallel: Parallel) -> Job:
    """The job on `count` sites that are all like number `site`, joined by `link`."""
    spec = job.cluster.sites[site]
    base = catalog(*(Path(path) for path in job.hardware)).cluster_spec(spec.base) if spec.base else None
    device, levels = (
        spec.device or (base.device if base else ""),
        spec.levels or (base.levels if base else ()),
    )
    outer = LevelSpec(
        name=LEVEL_NAME,
        count=count,
        link=link.link.name,
        gigabits_per_second=link.link.bytes_per_second * 8 / 1e9,
        latency_seconds=link.link.latency_seconds,
        ports=link.link.ports,
        oversubscription=link.oversubscription,
        loss=link.loss,
        price_per_hour=link.link.price_per_hour,
    )
    cluster = ClusterSpec(name=spec.name, device=device, levels=(*levels, outer))
    return job.model_copy(update={"cluster": cluster, "parallel": parallel})
