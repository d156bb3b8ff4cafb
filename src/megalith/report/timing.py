"""Where a run's time went: the spans of trace.jsonl added up by name.

A trace has three lines a step, so it is read line by line and never held.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PARTS = ("read", "step", "metrics", "evaluate", "checkpoint")
"""Spans of the training loop that do not contain each other, in the order of the loop."""


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds in each part of the loop, over all sessions of a run that was resumed."""

    parts: dict[str, float]
    other_seconds: float
    sessions: int
    steps: int

    @property
    def total_seconds(self) -> float:
        return sum(self.parts.values()) + self.other_seconds


def read_time_spent(trace: Path, session_seconds: float | None = None) -> TimeSpent | None:
    """None where the run left no trace. `session_seconds` is how long the last session took by its own
    summary, which also covers what has no span, such as the evaluation at the end."""
    if not trace.exists():
        return None
    parts = dict.fromkeys(PARTS, 0.0)
    ends: list[float] = []
    session: object = None
    last_start, steps = 0.0, 0
    with trace.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                span = json.loads(line)
                name, start, duration = span["name"], float(span["start"]), float(span["duration"])
            except (ValueError, KeyError, TypeError):
                # A kill leaves half a line, and a resumed run writes on after it.
                continue
            if name not in parts:
                continue
            # Each session counts from zero, in a process of its own or again in the same one.
            if session != span.get("process") or start < last_start:
                session = span.get("process")
                ends.append(0.0)
            last_start = start
            ends[-1] = max(ends[-1], start + duration)
            parts[name] += duration
            steps += name == "step"
    if not ends:
        return None
    if session_seconds is not None:
        ends[-1] = max(ends[-1], session_seconds)
    spent = {name: seconds for name, seconds in parts.items() if seconds}
    in_parts = sum(spent.values())
    # A session that began after the last span of the one before, in a process of the same number, looks like
    # its continuation; parts do not overlap, so that all took at least as long as they did.
    total = max(sum(ends), in_parts)
    return TimeSpent(spent, total - in_parts, len(ends), steps)
