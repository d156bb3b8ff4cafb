"""What flows get out of a level's links: oversubscription, hashing of flows onto ports, loss, limits of one
flow.

    usable rate = link rate / oversubscription x routing efficiency x delivery efficiency, at most flows x
    flow limit

Routing. ECMP hashes each flow onto one of the ports; the transfer ends when the fullest port does, so the
efficiency is the mean load over the expected maximum of n balls in k bins. Packet spraying and adaptive
routing use all ports. Loss. ECMP keeps a flow in order, and its adapters go back and resend a whole window;
spraying needs adapters that resend single packets. On long paths a window that halves at each loss limits a
flow (Mathis et al. 1997), which more flows make up for.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, log, sqrt

from megalith.hardware.cluster import Level

QUEUE_PAIRS = 8
"""Connections that one rank's traffic is cut into where flows are hashed, as clusters on Ethernet set it up
(Gangidhar et al., SIGCOMM 2024)."""
PACKET_BYTES = 4096
LONG_PATH_SECONDS = 1e-4
"""One-way latency above which windows, not adapters, rule a flow."""
ADAPTIVE_EFFICIENCY = 0.97
"""What reacting to queues after they have built up leaves of a link; spraying avoids them beforehand."""


@lru_cache(maxsize=4096)
def expected_maximum_load(balls: int, bins: int) -> float:
    """Balls in the fullest of `bins` when each of `balls` falls at random; bins taken as independent
    (Poisson).

    >>> round(expected_maximum_load(8, 8), 1)
    2.6
    """
    if bins == 1 or balls == 0:
        return float(balls)
    mean = balls / bins
    if mean > 600:
        # The largest of `bins` normal variables.
        return mean + sqrt(2 * mean * log(bins))
    term = cumulative = exp(-mean)
    expected = 0.0
    for count in range(balls + 50):
        beyond = 1 - min(1.0, cumulative) ** bins
        expected += beyond
        if count > mean and beyond < 1e-9:
            break
        term *= mean / (count + 1)
        cumulative += term
    return min(max(expected, mean, 1.0), float(balls))


def routing_efficiency(routing: str, flows: int, ports: int) -> float:
    """Share of a link's ports that `flows` keep busy until the last of them is through."""
    if ports == 1 or routing == "spray":
        return 1.0
    if routing == "adaptive":
        return ADAPTIVE_EFFICIENCY
    return (flows / ports) / expected_maximum_load(flows, ports)


def delivery_efficiency(routing: str, loss: float, flow_rate: float, latency_seconds: float) -> float:
    """Share of sent bytes that are new ones: 1 - p with selective resending, less where windows are
    resent."""
    if loss == 0:
        return 1.0
    if routing != "ecmp":
        return 1 - loss
    window = max(1.0, flow_rate * 2 * latency_seconds / PACKET_BYTES)
    return (1 - loss) / (1 - loss + loss * window)


def flow_limit(level: Level) -> float:
    """Bytes per second that one flow reaches at most on this level."""
    limit = level.link.flow_bytes_per_second
    latency = level.link.latency_seconds
    if level.loss > 0 and latency > LONG_PATH_SECONDS:
        # Mathis: packet / round trip x sqrt(3/2) / sqrt(loss).
        limit = min(limit, PACKET_BYTES * sqrt(1.5) / (2 * latency * sqrt(level.loss)))
    return limit


def usable_rate(level: Level, *, ranks: int, routing: str = "adaptive", multipath: int = 1) -> float:
    """Bytes per second out of one member of the level when `ranks` devices in it send at the same time."""
    link = level.link
    rate = link.bytes_per_second / level.oversubscription
    flows = max(1, ranks) * multipath
    hashed = flows * (QUEUE_PAIRS if routing == "ecmp" else 1)
    rate *= routing_efficiency(routing, hashed, link.ports)
    rate *= delivery_efficiency(routing, level.loss, rate / hashed, link.latency_seconds)
    limit = flow_limit(level)
    return rate if limit == inf else min(rate, flows * limit)
