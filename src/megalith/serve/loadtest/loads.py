"""Load as users make it: arrivals that wait for nobody (open loop), or so many at a time (closed loop)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megalith.serve.loadtest.clients import LoadClient

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
_MOST_OUTSTANDING = 8192
Check = Callable[[int, bytes], bool]
"""Whether the body that answers payload number n is right."""


@dataclass(slots=True)
class LoadResult:
    """What became of the requests of one run."""

    offered_rate: float | None
    """Requests a second that were to be sent; None of a closed loop."""
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    """Of answers, in seconds from when the request was due."""
    failures: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Answers that the check refused."""
    unsent: int = 0
    """Requests that were due and not sent, for too many had no answer."""
    bytes_sent: int = 0
    client_cpu_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, percent: float) -> float:
        """Seconds that so many percent of answers did not exceed."""
        return float(np.percentile(self.latencies, percent)) if self.latencies else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """As `--json` has it."""
        latencies = {
            f"p{percent:g}": self.percentile(percent) if self.latencies else None for percent in PERCENTILES
        }
        return {
            "offered_rate": self.offered_rate,
            "rate": self.rate,
            "seconds": self.seconds,
            "answers": len(self.latencies),
            "failures": dict(self.failures),
            "wrong": self.wrong,
            "unsent": self.unsent,
            "latency_seconds": {**latencies, "max": max(self.latencies, default=None)},
            "bytes_sent": self.bytes_sent,
            "client_cpu_seconds": self.client_cpu_seconds,
            "client_cpu_share": self.client_cpu_seconds / self.seconds if self.seconds else 0.0,
        }


async def open_loop(
    client: LoadClient,
    payloads: Sequence[bytes],
    rate: float,
    seconds: float,
    seed: int = 0,
    check: Check | None = None,
) -> LoadResult:
    """Poisson arrivals at `rate`: each is sent when it is due, whatever became of those before it."""
    draw = np.random.default_rng(seed)
    count = max(1, round(rate * seconds))
    gaps = np.cumsum(draw.exponential(1.0 / rate, count))
    # The last is due when the time is over, so that the rate is what was asked for.
    due = (gaps * (seconds / gaps[-1])).tolist()
    run = _Run(client, payloads, LoadResult(rate), check)
    for number, offset in enumerate(due):
        delay = run.began + offset - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        elif number % 32 == 0:
            # Late: answers must still be read.
            await asyncio.sleep(0)
        run.send(number % len(payloads), run.began + offset)
    return await run.end()


async def closed_loop(
    client: LoadClient,
    payloads: Sequence[bytes],
    concurrency: int,
    seconds: float,
    check: Check | None = None,
) -> LoadResult:
    """So many requests at a time: the next is sent when one is answered."""
    run = _Run(client, payloads, LoadResult(None), check)
    numbers = iter(range(1 << 62))

    def following() -> None:
        now = time.perf_counter()
        if now - run.began < seconds:
            run.send(next(numbers) % len(payloads), now, following)

    for _ in range(concurrency):
        following()
    return await run.end()


class _Run:
    """Requests of one run, those without an answer among them."""

    def __init__(
        self, client: LoadClient, payloads: Sequence[bytes], result: LoadResult, check: Check | None
    ) -> None:
        self._client, self._payloads, self._result, self._check = client, payloads, result, check
        self._outstanding = 0
        self._idle = asyncio.Event()
        self._cpu = time.process_time()
        self._last = self.began = time.perf_counter()

    def send(self, place: int, due: float, then: Callable[[], None] | None = None) -> None:
        if self._outstanding >= _MOST_OUTSTANDING:
            self._result.unsent += 1
            return
        self._outstanding += 1
        payload = self._payloads[place]
        self._result.bytes_sent += len(payload)

        def done(status: int, body: bytes) -> None:
            self._last = time.perf_counter()
            if status == 200:
                self._result.latencies.append(self._last - due)
                if self._check is not None and not self._check(place, body):
                    self._result.wrong += 1
            else:
                self._result.failures[str(status)] += 1
            self._outstanding -= 1
            if then is not None:
                then()
            if not self._outstanding:
                self._idle.set()

        self._client.send(payload, done)

    async def end(self) -> LoadResult:
        while self._outstanding:
            self._idle.clear()
            await self._idle.wait()
        self._result.seconds = self._last - self.began
        self._result.client_cpu_seconds = time.process_time() - self._cpu
        return self._result
