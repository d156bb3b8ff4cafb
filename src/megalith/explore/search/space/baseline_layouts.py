"""How training across sites is usually laid out: where a search begins, and what baselines are made of.

Either copies of the model lie on different sites, or stages of one pipeline do.
"""

from __future__ import annotations

from math import inf

from megalith.explore.search.space.decisions import Rhythm, Sharing
from megalith.explore.search.space.layouts import AXES, Layout
from megalith.explore.search.space.search_space import Restriction
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


def copies_across(cluster: Cluster) -> Restriction:
    """Whole copies on each site, sharded inside or with ZeRO-1; 1F1B, interleaved where that divides."""
    sites = site_levels(cluster)
    names = {cluster.levels[level].name for level in sites}
    column = AXES.index("dp")

    def layout(one: Layout) -> bool:
        return all(one.factors[level][column] == cluster.levels[level].count for level in sites)

    def sharing(one: Sharing) -> bool:
        return one.sharding == "zero1" or (one.sharding == "hybrid" and one.shard_within in names)

    def rhythm(one: Rhythm) -> bool:
        return one.schedule in ("interleaved", "1f1b")

    return Restriction(layout, sharing, rhythm)


def stages_across(cluster: Cluster) -> Restriction:
    """One pipeline over all sites in Megatron's order of axes, with as much in flight as hides the way."""
    sites = site_levels(cluster)
    column = AXES.index("pp")

    def layout(one: Layout) -> bool:
        return one.placement == AXES and all(
            one.factors[level][column] == cluster.levels[level].count for level in sites
        )

    def rhythm(one: Rhythm) -> bool:
        return one.schedule == "long-link" and one.vpp == 1

    return Restriction(layout=layout, rhythm=rhythm)
