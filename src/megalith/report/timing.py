"""Where a run's time went: the spans of its trace added up by name, those included that it has dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from megalith.core.trace import read_totals


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds in each part of the loop, over all sessions of a run that was resumed."""

    parts: dict[str, float]
    other_seconds: float
    sessions: int
    steps: int
    own: dict[str, dict[str, float]] = field(default_factory=dict)
    """By kind of thread and by span: seconds without those of spans within it."""

    @property
    def total_seconds(self) -> float:
        """Time over all sessions."""
        return sum(self.parts.values()) + self.other_seconds


def read_time_spent(trace: Path, session_seconds: float | None = None) -> TimeSpent | None:
    """None where the run left no trace. `session_seconds` is how long the last session took by its own
    summary, which also covers what has no span, such as the evaluation at the end."""
    totals = read_totals(trace)
    sessions = totals.session_seconds
    if not sessions:
        return None
    if session_seconds is not None:
        sessions[-1] = max(sessions[-1], session_seconds)
    spent = {name: seconds for name, seconds in totals.seconds.items() if seconds}
    in_parts = sum(spent.values())
    # A session that began after the last span of the one before, in a process of the same number, looks like
    # its continuation; parts do not overlap, so that all took at least as long as they did.
    total = max(sum(sessions), in_parts)
    return TimeSpent(spent, total - in_parts, len(sessions), totals.steps, totals.own)
