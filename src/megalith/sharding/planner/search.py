"""How a plan is searched for, and when the search ends: by the clock, or after counted steps.

By the clock a busy machine finds less. Counted, a search takes the same decisions everywhere: every look at
the clock is a step, and steps are all that advances it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, get_args

from megalith.core.errors import ConfigError, nearest

Algorithm = Literal["best", "greedy", "karmarkar_karp", "mip"]
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
MIN_DIM = 4
"""Columns that a slice keeps at least: narrower ones move more bytes of cache lines than of rows."""
_RUN_STEPS = (400, 10_000)
_RUN_WORK = 30_000_000
"""Least and most steps for the plan of a run, and tables x workers x steps that lie between: a step takes
longer where there are more of them. About as good as three seconds by the clock, and as quick, up to some
hundred tables on some tens of workers; beyond that better and slower."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How to look for a plan, and for how long.

    "greedy" places whole tables as TorchRec and Neo do by default; "karmarkar_karp" takes the options that
    the bound prefers and differences them; "mip" continues from a good plan to the best one, where the
    problem is small; "best" tries all of them.
    """

    algorithm: str = "best"
    improve: bool = True
    """Whether local search follows."""
    seconds: float = 9.0
    """How long to look for a better plan at most."""
    steps: int | None = None
    """With it the search is counted instead, and finds the same plan on any machine and under any load."""
    min_dim: int = MIN_DIM
    """Columns that a slice keeps at least."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"Unknown algorithm '{self.algorithm}'; {nearest(self.algorithm, ALGORITHMS)}")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"A search takes at least 1 step, not {self.steps}.")

    def clock(self) -> Clock:
        """What the search looks at to see whether it has to end."""
        return Clock() if self.steps is None else StepClock(self.seconds / self.steps)


def run_search(num_tables: int, world_size: int) -> SearchSettings:
    """The search for the plan of a run, in `megalith train` and in `megalith plan RECIPE` alike: counted, so
    that both find the same plan wherever and whenever they look.

    >>> run_search(26, 4).steps, run_search(1000, 128).steps
    (10000, 400)
    """
    least, most = _RUN_STEPS
    return SearchSettings(steps=max(least, min(most, _RUN_WORK // max(1, num_tables * world_size))))


class Clock:
    """Seconds since it was made, by the machine's clock."""

    counted = False

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begin

    def after(self, seconds: float) -> Deadline:
        """The moment so many seconds after the beginning."""
        return Deadline(self, seconds)


class StepClock(Clock):
    """Advances by the same time whenever it is looked at, and never in between."""

    counted = True

    def __init__(self, seconds_a_step: float) -> None:
        super().__init__()
        self._seconds, self._seconds_a_step = 0.0, seconds_a_step

    def now(self) -> float:
        """Counts a step and says where that leaves the clock."""
        self._seconds += self._seconds_a_step
        return self._seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by a clock."""

    clock: Clock
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the search has to end."""
        return self.clock.now() >= self.seconds
