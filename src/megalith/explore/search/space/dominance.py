"""Network options that no other option beats.

An option beats another when it carries at least as much over every link for any number of senders, and its
collectives are never slower. Such a comparison holds for every plan at once, so that a whole decision of the
tree often has one option left. Of equals the first listed stays, which is the simplest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megalith.cost.network import usable_rate
from megalith.explore.search.space.decisions import NetworkChoice
from megalith.hardware.cluster import Cluster


def undominated(networks: Sequence[NetworkChoice], cluster: Cluster) -> list[NetworkChoice]:
    """The options that are the best of their kind for some plan."""
    rates = {network: _rates(network, cluster) for network in networks}
    kinds: dict[NetworkChoice, list[NetworkChoice]] = {}
    for network in networks:
        # Overlap, buckets, compression and local steps are no matter of rates: compared only among equals.
        kind = replace(network, routing="ecmp", multipath=1, collectives="auto")
        kinds.setdefault(kind, []).append(network)
    return [
        network
        for alike in kinds.values()
        for position, network in enumerate(alike)
        if not any(
            _no_worse(other, network, rates) and (before < position or not _no_worse(network, other, rates))
            for before, other in enumerate(alike)
            if before != position
        )
    ]


def _no_worse(one: NetworkChoice, other: NetworkChoice, rates: dict[NetworkChoice, list[float]]) -> bool:
    # `auto` takes the fastest algorithm for each message.
    if one.collectives not in ("auto", other.collectives):
        return False
    return all(a >= b for a, b in zip(rates[one], rates[other], strict=True))


def _rates(network: NetworkChoice, cluster: Cluster) -> list[float]:
    """Bytes per second out of a member of each level but the innermost, for 1, 2, 4, ... senders."""
    rates = []
    outermost = len(cluster.levels) - 1
    for index in range(1, len(cluster.levels)):
        senders = 1
        while senders <= cluster.devices_within(index - 1):
            multipath = network.multipath if index == outermost else 1
            level = cluster.levels[index]
            rates.append(usable_rate(level, ranks=senders, routing=network.routing, multipath=multipath))
            senders *= 2
    return rates
