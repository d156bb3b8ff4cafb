"""Counts of a version's requests, as the protocol's statistics extension and Prometheus have them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

_BUCKETS = 64


def bucket_of(seconds: float) -> int:
    """The bucket of a latency; four a doubling, the first up to 100 microseconds."""
    return min(_BUCKETS - 1, max(0, math.ceil(4 * math.log2(max(seconds, 1e-9) / 1e-4))))


def bucket_limits() -> list[float]:
    """The highest latency of each bucket, in seconds; the last holds all above."""
    return [1e-4 * 2 ** (number / 4) for number in range(_BUCKETS)]


@dataclass(slots=True)
class VersionStatistics:
    """What became of the requests of one version."""

    success: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """By reason: REJECTED, CANCELED, BACKEND, OTHER."""
    samples: int = 0
    """Of requests that were answered."""
    executions: int = 0
    """Batches."""
    degraded: int = 0
    retried: int = 0
    """Requests that were run again because a card was lost."""
    total_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    compute_ns: int = 0
    output_ns: int = 0
    fail_ns: int = 0
    last_inference_ms: int = 0
    """Of the last answer, by the wall clock."""
    latencies: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    """Answers by latency, as `bucket_limits` cuts them."""
    batches: dict[int, list[int]] = field(default_factory=dict)
    """By samples that ran together (rounded up to a power of two): executions, compute nanoseconds."""

    def to_dict(self) -> dict[str, Any]:
        """As `--json` has it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def quantile(self, share: float) -> float:
        """The latency, in seconds, that so large a share of answers did not exceed; by buckets."""
        total, seen = sum(self.latencies), 0
        for limit, count in zip(bucket_limits(), self.latencies, strict=True):
            seen += count
            if total and seen >= share * total:
                return limit
        return 0.0
