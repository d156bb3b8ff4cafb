"""Seconds and bytes of collectives over the nested levels of a cluster.

A group is seen level by level: how many members of each level it touches, and how many groups like it share
one member's link at the same time. A flat ring runs at its slowest link and, if every step waits for all
ranks, pays the longest latency on every one; a hierarchical one reduces inside first, so that the outer links
carry each byte once per member however many devices are in it. NCCL, which `auto` stands for, has rings whose
steps wait for nobody (each hop's latency once), trees for all-reduces alone, and nothing else that is
hierarchical. Over one level everything falls back to the closed forms (n ranks, S bytes, rate b, latency a):

    all-reduce 2 (n-1)/n S/b, reduce-scatter, all-gather and all-to-all (n-1)/n S/b, ring 2 (n-1) a, tree 2
    log2(n) a
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log2, prod
from typing import Literal

from megalith.cost.calibration import Calibration, calibration
from megalith.cost.network import usable_rate
from megalith.hardware.cluster import Cluster

FULL_RANKS = 8
"""Ranks from which on a collective inside a node keeps all lanes of a link busy."""
Kind = Literal["all_reduce", "reduce_scatter", "all_gather"]
_PASSES = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


@dataclass(frozen=True, slots=True)
class LevelSpan:
    """How a group of ranks extends over one level of the cluster."""

    ranks: int
    """Members of this level, seen from one of the level above."""
    sharing: int
    """Groups that go through one member's link at the same time."""


Group = tuple[LevelSpan, ...]
"""From the innermost level out; levels beyond its end are not crossed."""


def group_size(group: Group) -> int:
    """Ranks of a group."""
    return prod(span.ranks for span in group)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A cluster's network as collectives use it: its links, routing and the algorithm of collectives."""

    cluster: Cluster
    routing: str = "adaptive"
    multipath: int = 1
    algorithm: str = "auto"
    ideal: bool = False
    """Take the links at their full rate, without what collectives reach of it: for the closed forms."""
    software: Calibration | None = None
    """Constants of the device under a given training software; the device's own when left out."""

    @property
    def constants(self) -> Calibration:
        """The fitted constants of the cluster's device."""
        return self.software or calibration(self.cluster.device)

    def rate(self, level: int, sharing: int, ranks_inside: int = 1, ranks: int = FULL_RANKS) -> float:
        """Bytes per second that one of `sharing` groups gets out of a member of the level."""
        return _rate(self, level, sharing, ranks_inside, ranks)

    def latency(self, level: int) -> float:
        """Seconds of one message over a link of the level."""
        return self.cluster.levels[level].link.latency_seconds


@lru_cache(maxsize=65536)
def _rate(fabric: Fabric, level: int, sharing: int, ranks_inside: int, ranks: int) -> float:
    entry = fabric.cluster.levels[level]
    if level == 0:
        constants = fabric.constants
        few = min(1.0, ranks / FULL_RANKS) ** constants.inside_rank_exponent
        fraction = 1.0 if fabric.ideal else constants.inside_fraction * few
        return entry.link.bytes_per_second / entry.oversubscription * fraction / sharing
    outermost = level == len(fabric.cluster.levels) - 1
    rate = usable_rate(
        entry,
        ranks=sharing * ranks_inside,
        routing=fabric.routing,
        multipath=fabric.multipath if outermost else 1,
    )
    fraction = 1.0 if fabric.ideal else fabric.constants.between_fraction
    return rate * fraction / sharing


def collective_seconds(
    fabric: Fabric, kind: Kind, group: Group, message_bytes: float, shrink: float = 1.0
) -> float:
    """The collective by the algorithm asked for, the best that NCCL has when that is `auto`.

    `message_bytes` is the whole vector (what each rank holds after an all-gather); `shrink` divides the bytes
    on the outermost level that the group crosses (compression).
    """
    if group_size(group) == 1 or message_bytes == 0:
        return 0.0
    if fabric.algorithm == "hierarchical":
        return hierarchical_seconds(fabric, kind, group, message_bytes, shrink)
    if fabric.algorithm == "flat":
        return ring_seconds(fabric, kind, group, message_bytes / shrink)
    pipelined = pipelined_ring_seconds(fabric, kind, group, message_bytes / shrink)
    if kind != "all_reduce":
        return pipelined
    carried = message_bytes / shrink
    trees = (tree_seconds(fabric, kind, group, carried), node_tree_seconds(fabric, kind, group, carried))
    return min(pipelined, *trees)


def ring_seconds(fabric: Fabric, kind: Kind, group: Group, message_bytes: float) -> float:
    """One ring through all ranks: the slowest link's rate, the longest latency at every step."""
    ranks = group_size(group)
    steps = _PASSES[kind] * (ranks - 1)
    return steps / ranks * _slowest(fabric, group, message_bytes) + steps * _longest(fabric, group)


def pipelined_ring_seconds(fabric: Fabric, kind: Kind, group: Group, message_bytes: float) -> float:
    """NCCL's ring: the slowest link's rate, and the latency of each hop once, as a rank passes on what it has
    without waiting for the others' steps. Of a group's n - 1 hops one fewer than it has members is of its
    outermost level."""
    ranks = group_size(group)
    bandwidth = _PASSES[kind] * (ranks - 1) / ranks * _slowest(fabric, group, message_bytes)
    latency, members = 0.0, ranks
    for index, span in enumerate(group):
        if span.ranks > 1:
            above = members // span.ranks
            latency += (members - above) * fabric.latency(index)
            members = above
    return bandwidth + _PASSES[kind] * latency


def tree_seconds(fabric: Fabric, kind: Kind, group: Group, message_bytes: float) -> float:
    """Two trees that share the work (Sanders et al. 2009): the ring's bytes, latency by depth."""
    ranks = group_size(group)
    bandwidth = _PASSES[kind] * (ranks - 1) / ranks * _slowest(fabric, group, message_bytes)
    return bandwidth + _PASSES[kind] * log2(ranks) * _longest(fabric, group)


def node_tree_seconds(fabric: Fabric, kind: Kind, group: Group, message_bytes: float) -> float:
    """NCCL's trees as they lie: a chain through the devices of a node, trees over nodes. Links between nodes
    carry each byte once per node, those of further levels no fewer."""
    inner, outer = group[0], group[1:]
    nodes = group_size(outer)
    seconds = 0.0
    if inner.ranks > 1:
        rate = fabric.rate(0, inner.sharing, 1, inner.ranks)
        seconds += (
            _PASSES[kind] * (inner.ranks - 1) * (message_bytes / inner.ranks / rate + fabric.latency(0))
        )
    if nodes > 1:
        # Level 0 is done; what is left is as a group of one rank a node.
        across = (LevelSpan(1, 1), *outer)
        slowest = _slowest(fabric, across, message_bytes, inner.ranks)
        seconds += _PASSES[kind] * ((nodes - 1) / nodes * slowest + log2(nodes) * _longest(fabric, across))
    return seconds


def hierarchical_seconds(
    fabric: Fabric, kind: Kind, group: Group, message_bytes: float, shrink: float = 1.0
) -> float:
    """Level after level: each rank of a member carries its share of the vector to the next level."""
    total, inside = 0.0, 1
    outermost = max(index for index, span in enumerate(group) if span.ranks > 1)
    for index, span in enumerate(group):
        if span.ranks > 1:
            carried = message_bytes / shrink if index == outermost else message_bytes
            steps = _PASSES[kind] * (span.ranks - 1)
            rate = fabric.rate(index, span.sharing, inside, span.ranks)
            total += steps / span.ranks * carried / rate
            total += steps * fabric.latency(index)
        inside *= span.ranks
    return total


def all_to_all_seconds(fabric: Fabric, group: Group, bytes_per_rank: float) -> float:
    """Each rank sends an equal part of `bytes_per_rank` to every rank; the fullest link decides."""
    ranks = group_size(group)
    if ranks == 1 or bytes_per_rank == 0:
        return 0.0
    slowest, inside, latency = 0.0, 1, 0.0
    for index, span in enumerate(group):
        if span.ranks > 1:
            # What leaves a member: its ranks' bytes to all ranks that are not in it.
            leaving = inside * bytes_per_rank * (ranks - inside) / ranks
            slowest = max(slowest, leaving / fabric.rate(index, span.sharing, inside, span.ranks))
            latency = fabric.latency(index)
        inside *= span.ranks
    return slowest + latency


def dispatch_seconds(fabric: Fabric, group: Group, token_bytes: float, choices: int) -> float:
    """Each rank's tokens to the experts they chose, spread evenly over the group; sending results back takes
    as long. The fullest link decides, as in any all-to-all."""
    if group_size(group) == 1 or token_bytes == 0:
        return 0.0
    slowest, inside, latency = 0.0, 1, 0.0
    for index, span in enumerate(group):
        if span.ranks > 1:
            leaving = dispatch_bytes(fabric, group, index, token_bytes, choices)
            slowest = max(slowest, leaving / fabric.rate(index, span.sharing, inside, span.ranks))
            latency = fabric.latency(index)
        inside *= span.ranks
    return slowest + latency


def dispatch_bytes(fabric: Fabric, group: Group, level: int, token_bytes: float, choices: int) -> float:
    """Bytes of one group's tokens that leave one member of a level on their way to experts.

    Flat, every choice of a token is sent by itself. Level by level a token goes once to each member in which
    one of its experts is, and is forwarded there (DeepEP, as in DeepSeek-V3): of D members k choices reach
    (D-1) (1 - (1 - 1/D)^k) others on average.
    """
    inside = prod(span.ranks for span in group[:level])
    members = group_size(group) / inside
    copies = choices * (members - 1) / members
    if fabric.algorithm != "flat":
        copies = (members - 1) * (1 - (1 - 1 / members) ** choices)
    return inside * token_bytes * copies


def egress_bytes(kind: Kind, group: Group, level: int, message_bytes: float, shrink: float = 1.0) -> float:
    """Bytes that one group sends out of one member of the level, hierarchically: 2 (D-1)/D S for D
    members."""
    span = group[level] if level < len(group) else LevelSpan(1, 1)
    outermost = max((index for index, crossed in enumerate(group) if crossed.ranks > 1), default=0)
    carried = message_bytes / shrink if level == outermost else message_bytes
    return _PASSES[kind] * (span.ranks - 1) / span.ranks * carried


def _slowest(fabric: Fabric, group: Group, message_bytes: float, inside: int = 1) -> float:
    """Seconds of the vector once over the slowest link that the group crosses."""
    slowest = 0.0
    for index, span in enumerate(group):
        if span.ranks > 1:
            slowest = max(slowest, message_bytes / fabric.rate(index, span.sharing, inside, span.ranks))
        inside *= span.ranks
    return slowest


def _longest(fabric: Fabric, group: Group) -> float:
    return max(fabric.latency(index) for index, span in enumerate(group) if span.ranks > 1)
