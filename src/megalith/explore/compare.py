"""Two jobs beside each other: what differs between them, and what each difference costs.

The two may be two plans on one cluster, or one model on two clusters. A job without a plan is searched for
its best one first, so that clusters are compared at their best. What a difference costs is found by turning
the first job into the second, one section after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from megalith.core.errors import MegalithError
from megalith.explore.job import Job
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction

Say = Callable[[str], None]
_SECTIONS = ("model", "cluster", "network", "training", "parallel")


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    job: Job
    prediction: Prediction
    searched: bool
    """Whether its plan was found here."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting, named as in the job."""

    key: str
    one: Any
    other: Any


@dataclass(frozen=True, slots=True)
class Change:
    """Sections of the second job put into the first, on top of the changes before, and the step after it."""

    sections: tuple[str, ...]
    step_seconds: float
    saved_seconds: float
    """Below 0: it cost so much."""


@dataclass(frozen=True, slots=True)
class Comparison:
    one: Side
    other: Side
    differences: tuple[Difference, ...]
    changes: tuple[Change, ...]
    """From the first job to the second; sections that make no job of their own go together."""

    @property
    def speed_up(self) -> float:
        """How many times as many samples a second the second side trains."""
        return self._rate(self.other) / self._rate(self.one)

    @property
    def sure(self) -> bool:
        """Whether the two step times differ by more than both may be wrong."""
        pair = (self.one.prediction, self.other.prediction)
        slow, fast = sorted(pair, key=lambda found: -found.step_seconds)
        return slow.step_seconds * (1 - slow.uncertainty) > fast.step_seconds * (1 + fast.uncertainty)

    def seconds_by_cause(self) -> dict[str, tuple[float, float]]:
        """Cause -> seconds of each side, causes that neither has left out."""
        both = self.one.prediction.breakdown, self.other.prediction.breakdown
        names = dict.fromkeys((*both[0], *both[1]))
        found = {name: (both[0].get(name, 0.0), both[1].get(name, 0.0)) for name in names}
        return {name: pair for name, pair in found.items() if any(pair)}

    def to_dict(self) -> dict[str, Any]:
        sides = {
            key: {
                "name": side.name,
                "searched": side.searched,
                "prediction": side.prediction.to_dict(),
                "job": side.job.model_dump(mode="json"),
            }
            for key, side in (("one", self.one), ("other", self.other))
        }
        return {
            **sides,
            "speed_up": self.speed_up,
            "sure": self.sure,
            "differences": [asdict(one) for one in self.differences],
            "changes": [asdict(one) for one in self.changes],
            "seconds_by_cause": self.seconds_by_cause(),
        }

    @staticmethod
    def _rate(side: Side) -> float:
        assert side.job.parallel is not None
        return side.job.parallel.global_batch / side.prediction.step_seconds


def compare(one: Job, other: Job, *, record: bool = False, say: Say = lambda _: None) -> Comparison:
    """Both jobs predicted, each at its best plan if it names none."""
    names = (one.name or "one", other.name or "other")
    if names[0] == names[1]:
        names = (one.cluster.name or names[0], other.cluster.name or names[1])
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    first, second = _side(names[0], one, record, say), _side(names[1], other, record, say)
    return Comparison(first, second, differences(first, second), changes(first, second))


def changes(one: Side, other: Side) -> tuple[Change, ...]:
    """The way from one job to the other, section by section."""
    before, job, waiting = one.prediction.step_seconds, one.job, []
    found = []
    sections = [name for name in _SECTIONS if getattr(one.job, name) != getattr(other.job, name)]
    for section in sections:
        job = job.model_copy(update={section: getattr(other.job, section)})
        waiting.append(section)
        if section == sections[-1]:
            seconds = other.prediction.step_seconds
        else:
            try:
                seconds = predict(job).step_seconds
            except MegalithError:
                # Half a change may fit no memory or no schedule; then the next section comes with it.
                continue
        found.append(Change(tuple(waiting), seconds, before - seconds))
        before, waiting = seconds, []
    return tuple(found)


def differences(one: Side, other: Side) -> tuple[Difference, ...]:
    """Settings in which two sides differ, with what a prediction filled in where a job left it open."""
    left, right = _flat(one), _flat(other)
    keys = dict.fromkeys((*left, *right))
    return tuple(
        Difference(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)
    )


def _side(name: str, job: Job, record: bool, say: Say) -> Side:
    if job.parallel is not None:
        return Side(name, job, predict(job, record=record), searched=False)
    from megalith.explore.search import search

    say(f"{name} has no parallel section: searching for its best plan.")
    best = search(job, progress=say).best
    return Side(
        name, best.job, predict(best.job, record=record) if record else best.prediction, searched=True
    )


def _flat(side: Side) -> dict[str, Any]:
    job = side.job
    settings: dict[str, Any] = {"name": None}
    for part in ("model", "parallel", "training", "network"):
        section = getattr(job, part)
        if section is not None:
            settings |= {f"{part}.{key}": value for key, value in section.model_dump(mode="json").items()}
    settings["parallel.micro_batch"] = side.prediction.micro_batch
    settings["training.recompute"] = side.prediction.recompute
    settings["cluster.device"] = job.cluster.device
    for place, level in enumerate(job.cluster.levels):
        values = level.model_dump(mode="json", exclude_none=True)
        settings |= {f"cluster.levels.{place}.{key}": value for key, value in values.items()}
    return settings
