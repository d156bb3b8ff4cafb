"""How long training stood still because no batch was ready: what a reader tier is there to avoid."""

from __future__ import annotations

from typing import NamedTuple

from megalith.comm.ranks import Ranks


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
