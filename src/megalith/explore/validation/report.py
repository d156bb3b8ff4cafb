"""What a validation says: the error of each row, by group, and of rows that nothing was fitted on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """One published measurement and the prediction of it."""

    id: str
    source: str
    group: str
    fitted: bool
    metric: str
    measured: float
    predicted: float
    error: float
    """(predicted - measured) / measured of the metric."""


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute relative errors over some rows."""

    rows: int
    mean: float
    median: float
    worst: float
    bias: float
    """Mean of the signed errors."""


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
    """Every measurement replayed, and the errors by group of rows."""

    rows: tuple[ValidationRow, ...]
    groups: dict[str, ErrorSummary]
    held_out: dict[str, ErrorSummary]
    """The same groups over the rows that nothing was fitted on."""
    bubbles: tuple[ValidationBubble, ...]

    def to_dict(self) -> dict[str, Any]:
        """What `explore validate --json` prints."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "groups": {name: asdict(group) for name, group in self.groups.items()},
            "held_out": {name: asdict(group) for name, group in self.held_out.items()},
            "bubbles": [{**asdict(bubble), "error": bubble.error} for bubble in self.bubbles],
            "bubbles_worst": max((abs(bubble.error) for bubble in self.bubbles), default=0.0),
        }
