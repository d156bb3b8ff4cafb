"""What a validation says: the error of each step, by family and by stack, and of steps left out of the
fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One measured step and the prediction of it."""

    id: str
    source: str
    stack: str
    family: str
    model: str
    metric: str
    measured: float
    predicted: float
    error: float
    """(predicted - measured) / measured of the metric."""
    left_out: float | None
    """The same by constants fitted without this model; None for a step that was never fitted on."""
    interval: tuple[float, float]
    """80% interval of the step's seconds."""
    inside: bool
    """Whether the measured step lies in it."""
    fits: bool


@dataclass(frozen=True, slots=True)
class MemoryCheck:
    """A logged peak, or a run that failed for want of memory, and what was predicted."""

    id: str
    stack: str
    measured_gibibytes: float | None
    """None: it ran out of memory."""
    predicted_gibibytes: float
    fits: bool

    @property
    def error(self) -> float | None:
        """Relative error of the peak, where one was logged."""
        measured = self.measured_gibibytes
        return None if measured is None else self.predicted_gibibytes / measured - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute relative errors over some rows."""

    rows: int
    mean: float
    median: float
    worst: float
    bias: float
    """Mean of the signed errors."""

    @classmethod
    def of(cls, errors: Iterable[float]) -> ErrorSummary:
        """The summary of signed errors."""
        listed = list(errors)
        absolute = [abs(error) for error in listed]
        return cls(len(listed), mean(absolute), median(absolute), max(absolute), mean(listed))


@dataclass(frozen=True, slots=True)
class ValidationBubble:
    """The bubble rate of a schedule as published, and as simulated."""

    model: str
    schedule: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted less published rate."""
        return self.predicted - self.measured


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """Every measurement replayed, and the errors by family and by stack."""

    rows: tuple[ValidationRow, ...]
    memory: tuple[MemoryCheck, ...]
    bubbles: tuple[ValidationBubble, ...]

    @property
    def groups(self) -> dict[str, ErrorSummary]:
        """Errors by family, by stack, and of all rows."""
        return self._summed({row.id: row.error for row in self.rows})

    @property
    def left_out(self) -> dict[str, ErrorSummary]:
        """The same groups by constants fitted without the row's model."""
        return self._summed({row.id: row.left_out for row in self.rows if row.left_out is not None})

    @property
    def coverage(self) -> dict[str, float]:
        """Share of rows inside their 80% interval, by the same groups."""
        return {name: sum(row.inside for row in rows) / len(rows) for name, rows in self._grouped().items()}

    def _grouped(self) -> dict[str, list[ValidationRow]]:
        grouped: dict[str, list[ValidationRow]] = {}
        for row in self.rows:
            for name in dict.fromkeys((row.family, f"stack {row.stack}", "all")):
                grouped.setdefault(name, []).append(row)
        return grouped

    def _summed(self, errors: dict[str, float]) -> dict[str, ErrorSummary]:
        summed = {}
        for name, rows in self._grouped().items():
            listed = [errors[row.id] for row in rows if row.id in errors]
            if listed:
                summed[name] = ErrorSummary.of(listed)
        return summed

    def to_dict(self) -> dict[str, Any]:
        """What `explore validate --json` prints."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "left_out": {name: asdict(group) for name, group in self.left_out.items()},
            "coverage": self.coverage,
            "memory": [{**asdict(check), "error": check.error} for check in self.memory],
            "bubbles": [{**asdict(bubble), "error": bubble.error} for bubble in self.bubbles],
            "bubbles_worst": max((abs(bubble.error) for bubble in self.bubbles), default=0.0),
        }
