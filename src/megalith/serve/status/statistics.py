"""Counts of requests by model and version, and how long they took. One thread writes, any may read."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

from megalith.serve.request import Answer

REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
_FIRST_SECONDS, _STEPS_A_DOUBLING, _NUM_BUCKETS = 50e-6, 2, 42
BUCKET_SECONDS = tuple(_FIRST_SECONDS * 2 ** (number / _STEPS_A_DOUBLING) for number in range(_NUM_BUCKETS))
"""Upper ends of the latency histogram's buckets but the last, which has none: 50 us to 74 s."""
_HISTORY_SECONDS = 120
MOST_VERSIONS, OLDER = 16, "older"
"""Versions of a model that are counted apart; those before are one, under this name."""


class LatencyHistogram:
    """How many requests took how long, in buckets that grow by the square root of 2."""

    def __init__(self) -> None:
        self.counts = [0] * (_NUM_BUCKETS + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Counts one request."""
        self.counts[_bucket(seconds)] += 1
        self.total_seconds += seconds

    def join(self, other: LatencyHistogram) -> None:
        """Counts those of another too."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.total_seconds += other.total_seconds

    def percentile(self, share: float) -> float | None:
        """Seconds that a share of requests did not exceed, to the width of a bucket; None of no requests."""
        left = share * sum(self.counts)
        if not left:
            return None
        for count, end in zip(self.counts, (*BUCKET_SECONDS, BUCKET_SECONDS[-1]), strict=True):
            left -= count
            if left <= 0:
                return end
        return BUCKET_SECONDS[-1]


def _bucket(seconds: float) -> int:
    if seconds <= _FIRST_SECONDS:
        return 0
    return min(_NUM_BUCKETS, math.ceil(_STEPS_A_DOUBLING * math.log2(seconds / _FIRST_SECONDS) - 1e-9))


@dataclass(slots=True)
class VersionCounts:
    """What one version of a model has answered."""

    success: int = 0
    success_ns: int = 0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    failure_ns: int = 0
    samples: int = 0
    executions: float = 0.0
    """A request that ran with others counts for its share of the batch."""
    queue_ns: int = 0
    input_ns: int = 0
    compute_ns: int = 0
    output_ns: int = 0
    degraded: int = 0
    last_ms: int = 0
    """When the last one was answered, in milliseconds since 1970."""
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    batches: dict[int, list[int]] = field(default_factory=dict)
    """Requests, input, compute and output ns by the power of two that the samples of a batch are within."""

    def add(self, other: VersionCounts) -> None:
        """Counts what another has counted too."""
        for name in (
            *("success", "success_ns", "failure_ns", "samples", "executions", "queue_ns", "input_ns"),
            *("compute_ns", "output_ns", "degraded"),
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.last_ms = max(self.last_ms, other.last_ms)
        for reason, count in other.failures.items():
            self.failures[reason] = self.failures.get(reason, 0) + count
        self.latency.join(other.latency)
        for size, values in other.batches.items():
            own = self.batches.setdefault(size, [0, 0, 0, 0])
            for place, value in enumerate(values):
                own[place] += value

    @property
    def execution_count(self) -> int:
        """Batches run."""
        return round(self.executions)

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return sum(self.failures.values())


@dataclass(slots=True)
class Second:
    """One second of traffic."""

    second: int
    requests: int = 0
    samples: int = 0
    failures: int = 0
    bytes_in: int = 0
    slowest: float = 0.0


class ServerStatistics:
    """All counts of a server."""

    def __init__(self) -> None:
        self.started = time.time()
        self.versions: dict[tuple[str, str], VersionCounts] = {}
        self.recent: deque[Second] = deque(maxlen=_HISTORY_SECONDS)
        self.protocols = {"http": 0, "grpc": 0}
        self.bytes_in = 0

    def of(self, model: str, version: str) -> VersionCounts:
        """The counts of a version, from now on if there were none."""
        counts = self.versions.get((model, version))
        if counts is None:
            self._fold(model)
            counts = self.versions[model, version] = VersionCounts()
        return counts

    def _fold(self, model: str) -> None:
        """Makes one of the oldest versions of a model: where one comes every second there would be no end."""
        known = [key for key in self.versions if key[0] == model and key[1] != OLDER]
        for key in known[: max(0, len(known) + 1 - MOST_VERSIONS)]:
            older = self.versions.setdefault((model, OLDER), VersionCounts())
            older.add(self.versions.pop(key))

    def succeeded(self, answer: Answer, seconds: float, num_bytes: int, protocol: str) -> None:
        """Counts an answer that took so long from the first byte of its request."""
        counts, timings = self.of(answer.model, answer.version), answer.timings
        samples = max((len(values) for values in answer.outputs.values()), default=0)
        counts.success += 1
        counts.success_ns += round(seconds * 1e9)
        counts.samples += samples
        counts.executions += min(1.0, samples / timings.batch) if timings.batch else 1.0
        counts.queue_ns += timings.queue_ns
        counts.input_ns += timings.input_ns
        counts.compute_ns += timings.compute_ns
        counts.output_ns += timings.output_ns
        counts.degraded += answer.degraded
        counts.last_ms = round(time.time() * 1000)
        counts.latency.add(seconds)
        batch = counts.batches.setdefault(1 << max(0, timings.batch - 1).bit_length(), [0, 0, 0, 0])
        for place, taken in enumerate((1, timings.input_ns, timings.compute_ns, timings.output_ns)):
            batch[place] += taken
        self._count(protocol, num_bytes)
        second = self._second()
        second.requests += 1
        second.samples += samples
        second.bytes_in += num_bytes
        second.slowest = max(second.slowest, seconds)

    def failed(
        self, model: str, version: str, reason: str, seconds: float, num_bytes: int, protocol: str
    ) -> None:
        """Counts a request for a model that is served here and got no answer."""
        counts = self.of(model, version)
        counts.failures[reason if reason in counts.failures else "OTHER"] += 1
        counts.failure_ns += round(seconds * 1e9)
        self._count(protocol, num_bytes)
        self._second().failures += 1

    def _count(self, protocol: str, num_bytes: int) -> None:
        self.protocols[protocol] = self.protocols.get(protocol, 0) + 1
        self.bytes_in += num_bytes

    def _second(self) -> Second:
        now = int(time.time())
        if not self.recent or self.recent[-1].second != now:
            self.recent.append(Second(now))
        return self.recent[-1]
