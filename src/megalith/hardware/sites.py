"""Sites that differ: each with its own devices and levels, and a link of its own between each pair.

Devices of two makes in one building are two sites too, with the building's network between them.
"""

from __future__ import annotations

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

    def ring(self, *, repeated: bool = False) -> Level:
        """What a ring through all sites runs at, in the order that is best: its slowest link, and the mean
        latency of the longest chain of messages that wait for each other; where collectives follow each other
        (`repeated`) chains go round and round, and that is the mean of all."""
        edges = self.ring_edges()
        ring = replace(_ring_of(edges), count=len(self.sites))
        if not repeated:
            return ring
        mean = sum(edge.link.latency_seconds for edge in edges) / len(edges)
        return replace(ring, link=replace(ring.link, latency_seconds=mean))

    def ring_edges(self) -> list[Level]:
        """The links of that ring, one after the other."""
        return [self.between(*edge) for edge in _edges(self.ring_order())]

    def ring_order(self) -> tuple[int, ...]:
        """The best order of the sites in a ring."""
        members = range(len(self.sites))
        if len(self.sites) > _MOST_ORDERED:
            return tuple(members)

        def promise(order: tuple[int, ...]) -> tuple[float, float]:
            level = _ring_of([self.between(*edge) for edge in _edges(order)])
            return level.link.bytes_per_second, -level.link.latency_seconds

        return max(((0, *rest) for rest in permutations(members[1:])), key=promise)

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


def _edges(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((*order, order[0])))


def _ring_of(edges: list[Level]) -> Level:
    slowest = min(edges, key=lambda level: level.link.bytes_per_second / level.oversubscription)
    # An all-reduce has 2 (n-1) steps; what a site sends in a step has come over the edge before in the last.
    steps = 2 * (len(edges) - 1)
    chains = (
        sum(edges[(start + step) % len(edges)].link.latency_seconds for step in range(steps))
        for start in range(len(edges))
    )
    flow = min(level.link.flow_bytes_per_second for level in edges)
    link: Link = replace(slowest.link, latency_seconds=max(chains) / steps, flow_bytes_per_second=flow)
    return replace(slowest, name=LEVEL_NAME, link=link, loss=max(level.loss for level in edges))
