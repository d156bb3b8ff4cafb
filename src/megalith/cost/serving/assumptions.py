"""What of a data sheet serving reaches: constants that were not measured, as no such card was at hand.

Two are published (Glow's history): host work of a request, and requests under way on a card. The others are
round figures; a prediction carries all of them, so that who knows better can say so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServingAssumptions:
    """Shares of peaks, and seconds that come with every piece of work."""

    product_fraction: float = 0.4
    """Of peak operations a second, by products of a few hundred rows."""
    lookup_fraction: float = 0.6
    """Of memory bandwidth, by rows that lie anywhere."""
    stream_fraction: float = 0.8
    """Of memory bandwidth, by bytes in order."""
    link_fraction: float = 0.8
    """Of a link's rate, after headers of packets."""
    line_bytes: int = 64
    """Smallest piece that a card's memory moves."""
    transfer_seconds: float = 5e-6
    """To begin and to report a transfer, beyond the link's latency."""
    launch_seconds: float = 1e-5
    """To start a partition on a card."""
    host_request_seconds: float = 2e-4
    """Of a host's core for a request: 0.5 ms with names bound by string maps, 0.2 ms without (Glow)."""
    host_transfer_seconds: float = 2e-6
    """Of a host's core to submit a transfer."""
    memory_share: float = 0.95
    """Of a card's memory, what firmware and code leave."""
    requests_in_flight: int = 4
    """On a card at a time, each with buffers of its own (Glow: 4 a card, +30%)."""
