"""Spans added up: seconds of each part of the training loop, how long its sessions took, and the seconds that
each kind of thread spent in each span but not in spans within it."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

LOOP_SPANS = ("read", "step", "metrics", "evaluate", "checkpoint")
"""Spans of the training loop that do not contain each other, in the order of the loop."""
MAX_NAMES = 200
"""Names of spans are those of the code; a file that is no trace could have any number."""
_NUMBER = re.compile(r"[_-]?\d+$")


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
    own: dict[str, dict[str, float]] = field(default_factory=dict)
    """By kind of thread and by name: seconds in spans without those that lie within them."""

    def add(self, span: dict[str, Any]) -> None:
        """Takes a span in; one of other names than the loop's lies within those, or beside them."""
        name, start, duration = span.get("name"), span.get("start"), span.get("duration")
        if not isinstance(name, str):
            return
        if not isinstance(start, (int, float)) or not isinstance(duration, (int, float)):
            return
        self._add_own(name, span.get("thread"), span.get("own", duration))
        if name not in self.seconds:
            return
        # Each session counts from zero, in a process of its own or again in the same one.
        if not self.session_seconds or self.process != span.get("process") or start < self.last_start:
            self.process = span.get("process")
            self.session_seconds.append(0.0)
        self.last_start = start
        self.session_seconds[-1] = max(self.session_seconds[-1], start + duration)
        self.seconds[name] += duration
        self.steps += name == "step"

    def _add_own(self, name: str, thread: Any, own: Any) -> None:
        if not isinstance(thread, str) or not isinstance(own, (int, float)):
            return
        of_thread = self.own.setdefault(thread_kind(thread), {}) if len(self.own) < MAX_NAMES else {}
        if name in of_thread or len(of_thread) < MAX_NAMES:
            of_thread[name] = of_thread.get(name, 0.0) + own

    def copy(self) -> SpanTotals:
        """What they are now, whatever is added later."""
        return deepcopy(self)

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
                # Earlier releases did not keep them.
                {
                    str(kind): {str(name): float(seconds) for name, seconds in of_thread.items()}
                    for kind, of_thread in content.get("own", {}).items()
                },
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def thread_kind(thread: str) -> str:
    """What threads of one kind are called: `megalith-loader` for megalith-loader_0 and _1, `loop` for the
    main one."""
    return "loop" if thread == "MainThread" else _NUMBER.sub("", thread)
