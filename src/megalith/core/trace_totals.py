"""Spans added up: seconds of each part of the training loop, and how long its sessions took."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LOOP_SPANS = ("read", "step", "metrics", "evaluate", "checkpoint")
"""Spans of the training loop that do not contain each other, in the order of the loop."""


@dataclass
class SpanTotals:
    """What all spans so far come to; spans are added in the order in which they were written."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOOP_SPANS, 0.0))
    steps: int = 0
    session_seconds: list[float] = field(default_factory=list)
    """When the last span of each session ended, counted from its beginning."""
    process: int | None = None
    """Of the last span, with its start: by them a new session is told from the one before."""
    last_start: float = 0.0

    def add(self, span: dict[str, Any]) -> None:
        """Takes a span in; one of other names than the loop's lies within those, or beside them."""
        name, start, duration = span.get("name"), span.get("start"), span.get("duration")
        if not isinstance(name, str) or name not in self.seconds:
            return
        if not isinstance(start, (int, float)) or not isinstance(duration, (int, float)):
            return
        # Each session counts from zero, in a process of its own or again in the same one.
        if not self.session_seconds or self.process != span.get("process") or start < self.last_start:
            self.process = span.get("process")
            self.session_seconds.append(0.0)
        self.last_start = start
        self.session_seconds[-1] = max(self.session_seconds[-1], start + duration)
        self.seconds[name] += duration
        self.steps += name == "step"

    def to_dict(self) -> dict[str, Any]:
        """As a trace file holds them."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Any) -> SpanTotals | None:
        """None for what `to_dict` has not written: totals of a damaged file are not known."""
        try:
            return SpanTotals(
                {name: float(content["seconds"][name]) for name in LOOP_SPANS},
                int(content["steps"]),
                [float(seconds) for seconds in content["session_seconds"]],
                content["process"],
                float(content["last_start"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
