"""Bytes that this process has sent to other ranks, by what they were.

What ranks of one host hand each other in shared memory counts as if it had been sent: the numbers do not
depend on where ranks live.
"""

from __future__ import annotations

from collections import Counter


class TrafficCounter:
    """Counts messages; what a process keeps for itself does not travel and does not count."""

    def __init__(self) -> None:
        self.sent_bytes: Counter[str] = Counter()
        """By what was sent: indices, vectors, gradients, ..."""
        self.calls: Counter[str] = Counter()

    @property
    def total_bytes(self) -> int:
        """All that was sent since the last reset."""
        return sum(self.sent_bytes.values())

    def reset(self) -> None:
        """Starts again from nothing."""
        self.sent_bytes.clear()
        self.calls.clear()

    def count(self, name: str, num_bytes: int) -> None:
        """Takes one message into account."""
        self.sent_bytes[name] += num_bytes
        self.calls[name] += 1
