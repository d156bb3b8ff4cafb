"""The highest rate under a bound of the 99th percentile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from megalith.serve.loadtest.loads import LoadResult

_KEPT_UP = 0.95
Trial = Callable[[float], Awaitable[LoadResult]]


def holds(result: LoadResult, p99_seconds: float) -> bool:
    """Whether a server kept up: every request answered, 99% in time, none piling up."""
    assert result.offered_rate is not None
    return (
        not result.failures
        and not result.wrong
        and not result.unsent
        and result.percentile(99.0) <= p99_seconds
        and result.rate >= _KEPT_UP * result.offered_rate
    )


async def highest_rate(trial: Trial, most: float, p99_seconds: float, rounds: int = 7) -> LoadResult | None:
    """The run at the highest rate that held, by halving between none and `most`; None where none did."""
    low, high = 0.0, most
    best: LoadResult | None = None
    for _ in range(rounds):
        # Not far below what a closed loop reached is where the answer lies.
        rate = 0.5 * (low + high) if best is not None or low else 0.7 * high
        result = await trial(rate)
        if holds(result, p99_seconds):
            best, low = result, rate
        else:
            high = rate
        if best is not None and high - low < 0.03 * high:
            break
    return best
