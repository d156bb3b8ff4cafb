"""When a search for a better plan ends: by the clock, or after counted steps.

By the clock a busy machine finds less. Counted, a search takes the same decisions everywhere: every look at
the clock is a step, and steps are all that makes it go on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


class Clock:
    """Seconds since it was made."""

    counted = False

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._begin

    def after(self, seconds: float) -> Deadline:
        """The moment so many seconds after the beginning."""
        return Deadline(self, seconds)


class StepClock(Clock):
    """Goes on by the same time whenever it is looked at, and never in between."""

    counted = True

    def __init__(self, seconds_a_step: float) -> None:
        super().__init__()
        self._seconds, self._seconds_a_step = 0.0, seconds_a_step

    def now(self) -> float:
        self._seconds += self._seconds_a_step
        return self._seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by a clock."""

    clock: Clock
    seconds: float

    @property
    def passed(self) -> bool:
        return self.clock.now() >= self.seconds
