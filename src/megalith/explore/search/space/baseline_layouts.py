"""How training across sites is usually laid out: where a search begins, and what baselines are made of.

Either replicas of the model lie on different sites, or stages of one pipeline do.
"""

from __future__ import annotations

from math import inf

from megalith.explore.search.space.decisions import PipelineChoice, StateSharding
from megalith.explore.search.space.layouts import AXES, DeviceLayout
from megalith.explore.search.space.restriction import Restriction
from megalith.hardware.cluster import Cluster


def site_levels(cluster: Cluster) -> tuple[int, ...]:
    """Levels between sites: those whose links hold single flows back, as wide-area ones do; else the
    outermost."""
    wide = tuple(
        index
        for index, level in enumerate(cluster.levels)
        if level.count > 1 and level.link.flow_bytes_per_second < inf
    )
    several = [index for index, level in enumerate(cluster.levels) if level.count > 1]
    return wide or tuple(several[-1:])


def replicas_across_sites(cluster: Cluster) -> Restriction:
    """Whole replicas on each site, sharded inside or with ZeRO-1; 1F1B, interleaved where that divides."""
    sites = site_levels(cluster)
    names = {cluster.levels[level].name for level in sites}
    column = AXES.index("dp")

    def layout(option: DeviceLayout) -> bool:
        return all(option.factors[level][column] == cluster.levels[level].count for level in sites)

    def sharding(option: StateSharding) -> bool:
        in_site = option.strategy == "hybrid" and option.shard_within in names
        return in_site or option.strategy == "zero1"

    def pipeline(option: PipelineChoice) -> bool:
        return option.schedule in ("interleaved", "1f1b")

    return Restriction(layout, sharding, pipeline)


def pipeline_across_sites(cluster: Cluster) -> Restriction:
    """One pipeline over all sites in Megatron's order of axes, with more micro-batches in flight."""
    sites = site_levels(cluster)
    column = AXES.index("pp")

    def layout(option: DeviceLayout) -> bool:
        return option.placement == AXES and all(
            option.factors[level][column] == cluster.levels[level].count for level in sites
        )

    def pipeline(option: PipelineChoice) -> bool:
        return option.schedule == "long-link" and option.vpp == 1

    return Restriction(layout=layout, pipeline=pipeline)
