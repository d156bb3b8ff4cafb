"""Sites that differ: each with its own devices and levels, and a link of its own between each pair.

Devices of two makes in one building are two sites too, with the building's network between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from megalith.hardware.cluster import Cluster, Level, Link

LEVEL_NAME = "site"
_MOST_ORDERED = 7
"""Sites up to which every order of a ring is tried."""


@dataclass(frozen=True, slots=True)
class SiteCluster:
    """Sites, and what joins each pair of them."""

    name: str
    sites: tuple[Cluster, ...]
    """Each with its own device and levels; its name is the site's."""
    pairs: tuple[tuple[int, int, Level], ...]
    """Every pair once, the lower number first."""

    @property
    def devices(self) -> int:
        """Devices of all sites."""
        return sum(site.devices for site in self.sites)

    def between(self, one: int, other: int) -> Level:
        """The link between two sites, as a level of two members."""
        wanted = (min(one, other), max(one, other))
        return next(level for first, second, level in self.pairs if (first, second) == wanted)

    def ring(self) -> Level:
        """What a ring through all sites runs at, in the order that is best: its slowest link, and the longest
        latency, as every step waits for both."""
        members = range(len(self.sites))
        orders: Iterator[tuple[int, ...]] = iter([tuple(members)])
        if len(self.sites) <= _MOST_ORDERED:
            orders = ((0, *rest) for rest in permutations(members[1:]))
        rings = [_ring_of([self.between(*edge) for edge in pairwise((*order, order[0]))]) for order in orders]
        best = max(rings, key=lambda level: (level.link.bytes_per_second, -level.link.latency_seconds))
        return replace(best, count=len(self.sites))

    def largest(self) -> Cluster:
        """The site with the most devices, as if all were like it: what tables and pages show of levels."""
        site = max(self.sites, key=lambda one: one.devices)
        name = " + ".join(f"{one.name} ({one.devices:,} {one.device.name})" for one in self.sites)
        return replace(site, name=name, levels=(*site.levels, self.ring()))

    def plain(self) -> Cluster | None:
        """The same as one cluster with a level of sites, where all sites and all links are alike."""
        first = self.sites[0]
        links = {replace(level.link, name="") for _, _, level in self.pairs}
        others = {(level.oversubscription, level.loss) for _, _, level in self.pairs}
        if len(links) != 1 or len(others) != 1:
            return None
        if any((site.device, site.levels) != (first.device, first.levels) for site in self.sites):
            return None
        level = replace(self.pairs[0][2], name=LEVEL_NAME, count=len(self.sites))
        return replace(first, name=self.name, levels=(*first.levels, level))


def _ring_of(edges: list[Level]) -> Level:
    slowest = min(edges, key=lambda level: level.link.bytes_per_second / level.oversubscription)
    latency = max(level.link.latency_seconds for level in edges)
    flow = min(level.link.flow_bytes_per_second for level in edges)
    link: Link = replace(slowest.link, latency_seconds=latency, flow_bytes_per_second=flow)
    return replace(slowest, name=LEVEL_NAME, link=link, loss=max(level.loss for level in edges))
