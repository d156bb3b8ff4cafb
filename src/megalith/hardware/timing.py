"""Timing candidates side by side.

Candidates take turns, round after round, so that a slow minute of the machine falls on all of them alike;
what is reported is the median and the spread over rounds. Processor time is kept beside clock time: where
others use the machine too, it is the steadier of the two.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each round of one candidate: by the clock, and of processor time over all its threads."""

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Slowest minus fastest round, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median if self.median else 0.0

    def rate(self, count: float) -> float:
        """Things a second at the median, where one round does `count` of them."""
        return count / self.median if self.median else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return {
            "median_seconds": self.median,
            "spread": self.spread,
            "seconds": list(self.seconds),
            "cpu_seconds": list(self.cpu_seconds),
        }


def interleave(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 1
) -> dict[str, Timing]:
    """Times each candidate `repeats` times, taking turns, after `warmup` rounds that do not count.

    Every second round goes backwards, so that no candidate always follows the same other one.
    """
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(warmup + repeats):
        for name in names if number % 2 == 0 else reversed(names):
            start, cpu_start = time.perf_counter(), time.process_time()
            candidates[name]()
            taken = time.perf_counter() - start, time.process_time() - cpu_start
            if number >= warmup:
                rounds[name].append(taken)
    return {
        name: Timing(tuple(clock for clock, _ in taken), tuple(cpu for _, cpu in taken))
        for name, taken in rounds.items()
    }
