"""How long training stood still because no batch was ready, which a reader tier is there to avoid; and what
it does meanwhile where the data grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from megalith.comm.ranks import Ranks
from megalith.data.growing import GrowingLoader
from megalith.data.loader import Loader
from megalith.train.pipeline import Pipeline
from megalith.train.stopping import StopSignal

_PEEK_SECONDS = 0.05
"""Between two looks at what else is due, while a file is waited for."""


class DataWait(NamedTuple):
    """Seconds of steps, and those of them in which a rank waited for data."""

    seconds: float
    step_seconds: float

    @property
    def share(self) -> float:
        """Of the time of steps."""
        return self.seconds / self.step_seconds if self.step_seconds else 0.0

    def to_dict(self) -> dict[str, float]:
        """As metrics.jsonl and summary.json have it."""
        return {"wait_seconds": round(self.seconds, 4), "wait_share": round(self.share, 4)}


class WaitMeter:
    """Adds up waiting: since it was last taken, and over all of this start."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._interval = DataWait(0.0, 0.0)
        self.total = DataWait(0.0, 0.0)
        """Of the ranks that waited longest, as it was taken."""

    def add(self, waited: float, step_seconds: float) -> None:
        """A step of this rank, its waiting included."""
        seconds, steps = self._interval
        self._interval = DataWait(seconds + waited, steps + step_seconds)

    def take(self) -> DataWait:
        """Since it was last taken, of the rank that waited longest: the others wait for it. All ranks call
        it."""
        own, self._interval = self._interval, DataWait(0.0, 0.0)
        longest = max(DataWait(*other) for other in self._ranks.from_each(lambda: tuple(own)))
        total = self.total
        self.total = DataWait(total.seconds + longest.seconds, total.step_seconds + longest.step_seconds)
        return longest


class GrowthWait:
    """What a loop does while it waits for files; of no effect where a loader reads data that is all there."""

    def __init__(self, loader: Loader | GrowingLoader) -> None:
        self._loader = loader if isinstance(loader, GrowingLoader) else None
        self.has_ended = False
        """Whether the marker was found and all was read."""

    @property
    def grows(self) -> bool:
        """Whether the data does."""
        return self._loader is not None

    def has_batch(self, pipeline: Pipeline, signal: StopSignal, meanwhile: Callable[[], None]) -> bool:
        """Waits for the next batch; False where there is none, because of a signal or of the data's end."""
        if self._loader is None:
            return True
        while (found := pipeline.peek(_PEEK_SECONDS)) == "waiting":
            if signal.requested:
                return False
            meanwhile()
        self.has_ended = found == "end"
        return found == "batch"

    def interrupt(self) -> None:
        """Whoever waits for files waits no more."""
        if self._loader is not None:
            self._loader.interrupt()
