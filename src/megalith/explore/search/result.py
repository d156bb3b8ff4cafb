"""What a search answers: plans, how good they are, what is proved, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megalith.explore.job import Job
from megalith.explore.prediction import Prediction


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A complete job, what is predicted of it, and where it comes from."""

    job: Job
    prediction: Prediction
    provenance: str
    cross_site_bytes: float = 0.0
    """Bytes a step that leave the busiest site (member of the outermost level)."""
    cost_per_step: float = 0.0
    """Devices and links of the clusters at their hourly prices, for the time of a step; 0 without prices."""
    in_space: bool = True
    """Whether the lower bound is of this plan too; local moves and greedy orders lead beyond the space."""

    @property
    def changes_mathematics(self) -> bool:
        """Local steps and compressed gradients train another model than the one asked for."""
        return self.job.training.local_steps > 1 or self.job.training.compression != "none"

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "provenance": self.provenance,
            "changes_mathematics": self.changes_mathematics,
            "cross_site_bytes": self.cross_site_bytes,
            "cost_per_step": self.cost_per_step,
            "prediction": self.prediction.to_dict(),
            "job": self.job.model_dump(mode="json"),
        }


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a better part of the cluster would bring, with the best of the Top plans on it."""

    part: str
    """level:<name> or device:<name>."""
    quantity: str
    """bandwidth, latency, flops, memory or memory_bandwidth."""
    factor: float
    """What the quantity was multiplied with."""
    step_seconds: float
    gain: float
    """Share of the step that it saves; negative where all Top plans are slower on it."""
    plan: int
    """Which of the Top plans is then the best, from 0."""

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer of a search: the best plans, what is proved about the rest, and why."""

    best: RankedPlan
    top: tuple[RankedPlan, ...]
    """At most five, fastest first (or cheapest, when there is a deadline); the first is `best`."""
    pareto: tuple[RankedPlan, ...]
    """Plans examined that no other beats in step time, memory, cross-site bytes and cost at once."""
    lower_bound_seconds: float
    """No plan of the space is faster than this: proved. The best plan may come from beyond the space and be
    faster than all of it; then this is its step."""
    gap: float
    """(best - lower bound) / best; 0 when the best plan is proved to be the best."""
    examined: int
    """Plans simulated."""
    pruned: int
    """Plans that bounds and dominance ruled out without simulating them."""
    unexamined: int
    """Plans neither simulated nor ruled out; 0 when the search was exact."""
    sensitivities: tuple[Sensitivity, ...] = ()
    explanation: tuple[str, ...] = ()
    """Sentences: what bounds the step, what the next best loses by, what a faster part would bring."""
    seconds: float = field(default=0.0, compare=False)

    @property
    def exact(self) -> bool:
        """Whether the best plan is proved to be the best of its space."""
        return self.unexamined == 0

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "best": self.best.to_dict(),
            "top": [plan.to_dict() for plan in self.top],
            "pareto": [plan.to_dict() for plan in self.pareto],
            "lower_bound_seconds": self.lower_bound_seconds,
            "gap": self.gap,
            "exact": self.exact,
            "examined": self.examined,
            "pruned": self.pruned,
            "unexamined": self.unexamined,
            "sensitivities": [sensitivity.to_dict() for sensitivity in self.sensitivities],
            "explanation": list(self.explanation),
            "seconds": self.seconds,
        }
