"""Two jobs compared: what differs between them, and what each difference costs.

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
from megalith.explore.search import search

Progress = Callable[[str], None]
_SECTIONS = ("model", "cluster", "network", "training", "parallel")


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """One of the two jobs, with its prediction."""

    name: str
    job: Job
    prediction: Prediction
    searched: bool
    """Whether its plan was found here."""


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting, named as in the job."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True, slots=True)
class SectionChange:
    """Sections of the second job put into the first, on top of the changes before, and the step after it."""

    sections: tuple[str, ...]
    step_seconds: float
    saved_seconds: float
    """Below 0: it cost so much."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two predicted jobs: what differs between them, and what each difference costs."""

    first: ComparedJob
    second: ComparedJob
    differences: tuple[SettingDifference, ...]
    changes: tuple[SectionChange, ...]
    """From the first job to the second; sections that make no job of their own go together."""

    @property
    def speed_up(self) -> float:
        """How many times as many samples a second the second job trains."""
        return self._rate(self.second) / self._rate(self.first)

    @property
    def sure(self) -> bool:
        """Whether the two step times differ by more than such predictions are wrong: two plans of one model,
        device and stack by their ratio's error, anything else by both intervals."""
        pair = (self.first.prediction, self.second.prediction)
        slow, fast = sorted(pair, key=lambda prediction: -prediction.step_seconds)
        if self.alike:
            return slow.step_seconds > fast.step_seconds * (1 + max(slow.plan_error, fast.plan_error))
        return slow.interval[0] > fast.interval[1]

    @property
    def alike(self) -> bool:
        """Whether the two are plans of one model on one device and stack, so that their errors cancel in
        part."""
        first, second = self.first, self.second
        same = first.job.model == second.job.model and first.job.cluster.device == second.job.cluster.device
        return same and first.prediction.stack == second.prediction.stack

    def seconds_by_cause(self) -> dict[str, tuple[float, float]]:
        """Cause -> seconds in each job, causes that neither has left out."""
        first, second = self.first.prediction.breakdown, self.second.prediction.breakdown
        seconds = {
            name: (first.get(name, 0.0), second.get(name, 0.0)) for name in dict.fromkeys((*first, *second))
        }
        return {name: pair for name, pair in seconds.items() if any(pair)}

    def to_dict(self) -> dict[str, Any]:
        """What `explore compare --json` prints."""
        jobs = {
            key: {
                "name": compared.name,
                "searched": compared.searched,
                "prediction": compared.prediction.to_dict(),
                "job": compared.job.model_dump(mode="json"),
            }
            for key, compared in (("one", self.first), ("other", self.second))
        }
        return {
            **jobs,
            "speed_up": self.speed_up,
            "sure": self.sure,
            "plan_error": max(self.first.prediction.plan_error, self.second.prediction.plan_error)
            if self.alike
            else None,
            "differences": [
                {"key": difference.key, "one": difference.first, "other": difference.second}
                for difference in self.differences
            ],
            "changes": [asdict(change) for change in self.changes],
            "seconds_by_cause": self.seconds_by_cause(),
        }

    @staticmethod
    def _rate(compared: ComparedJob) -> float:
        assert compared.job.parallel is not None
        return compared.job.parallel.global_batch / compared.prediction.step_seconds


def compare(
    first: Job, second: Job, *, record: bool = False, progress: Progress = lambda _: None
) -> Comparison:
    """Both jobs predicted, each at its best plan if it names none."""
    names = (first.name or "one", second.name or "other")
    if names[0] == names[1]:
        names = (first.cluster.name or names[0], second.cluster.name or names[1])
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    left, right = (
        _predicted(names[0], first, record, progress),
        _predicted(names[1], second, record, progress),
    )
    return Comparison(left, right, differences(left, right), changes(left, right))


def changes(first: ComparedJob, second: ComparedJob) -> tuple[SectionChange, ...]:
    """The first job turned into the second, section by section."""
    before, job, pending = first.prediction.step_seconds, first.job, []
    steps = []
    sections = [name for name in _SECTIONS if getattr(first.job, name) != getattr(second.job, name)]
    for section in sections:
        job = job.model_copy(update={section: getattr(second.job, section)})
        pending.append(section)
        if section == sections[-1]:
            seconds = second.prediction.step_seconds
        else:
            try:
                seconds = predict(job).step_seconds
            except MegalithError:
                # Half a change may fit no memory or no schedule; then the next section comes with it.
                continue
        steps.append(SectionChange(tuple(pending), seconds, before - seconds))
        before, pending = seconds, []
    return tuple(steps)


def differences(first: ComparedJob, second: ComparedJob) -> tuple[SettingDifference, ...]:
    """Settings in which two jobs differ, with what a prediction filled in where a job left it open."""
    left, right = _flat(first), _flat(second)
    keys = dict.fromkeys((*left, *right))
    return tuple(
        SettingDifference(key, left.get(key), right.get(key))
        for key in keys
        if left.get(key) != right.get(key)
    )


def _predicted(name: str, job: Job, record: bool, progress: Progress) -> ComparedJob:
    if job.parallel is not None:
        return ComparedJob(name, job, predict(job, record=record), searched=False)
    progress(f"{name} has no parallel section: searching for its best plan.")
    best = search(job, progress=progress).best
    return ComparedJob(
        name, best.job, predict(best.job, record=record) if record else best.prediction, searched=True
    )


def _flat(compared: ComparedJob) -> dict[str, Any]:
    """Dotted key -> value of every setting."""
    job = compared.job
    settings: dict[str, Any] = {"name": None}
    for name in ("model", "parallel", "training", "network"):
        section = getattr(job, name)
        if section is not None:
            settings |= {f"{name}.{key}": value for key, value in section.model_dump(mode="json").items()}
    settings["parallel.micro_batch"] = compared.prediction.micro_batch
    settings["training.recompute"] = compared.prediction.recompute
    settings["cluster.device"] = job.cluster.device
    for index, level in enumerate(job.cluster.levels):
        values = level.model_dump(mode="json", exclude_none=True)
        settings |= {f"cluster.levels.{index}.{key}": value for key, value in values.items()}
    return settings
