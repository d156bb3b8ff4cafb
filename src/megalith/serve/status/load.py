"""How busy cards, queue and this process are, second by second, and what of it bounds the rate."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_HISTORY_SECONDS = 120
_JUDGED_SECONDS = 10
_BUSY, _FULL = 0.85, 0.9


class LoadSample(NamedTuple):
    """One second."""

    time: float
    queued: int
    active: int
    cards: Mapping[str, float]
    """Share of the second that each card was at work, by its place."""
    process: float
    """Cores that this process took."""


@dataclass(slots=True)
class LoadSamples:
    """The last minutes, sampled by a timer of the event loop."""

    status: Callable[[], Mapping[str, Any]]
    samples: deque[LoadSample] = field(default_factory=lambda: deque(maxlen=_HISTORY_SECONDS))
    _timer: asyncio.TimerHandle | None = None
    _before: tuple[float, float, dict[str, float]] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Samples every second from now on."""
        self.sample()
        self._timer = loop.call_later(1.0, self.start, loop)

    def stop(self) -> None:
        """Samples no more."""
        if self._timer is not None:
            self._timer.cancel()

    def sample(self) -> None:
        """Adds what was since the last time."""
        status = self.status()
        now, process = time.monotonic(), time.process_time()
        busy: dict[str, float] = {}
        for card in status.get("cards", ()):
            place = str(card["card"])
            busy[place] = busy.get(place, 0.0) + float(card.get("busy_seconds", 0.0))
        if self._before is not None:
            then, process_then, busy_then = self._before
            taken = max(now - then, 1e-3)
            shares = {
                # A card that was started anew counts from nothing.
                place: min(1.0, max(0.0, seconds - busy_then.get(place, 0.0)) / taken)
                for place, seconds in busy.items()
            }
            queue = status.get("queue", {})
            self.samples.append(
                LoadSample(
                    time.time(),
                    int(queue.get("queued", 0)),
                    int(queue.get("active", 0)),
                    shares,
                    (process - process_then) / taken,
                )
            )
        self._before = now, process, busy


def bound_of(samples: Sequence[LoadSample], rejected: int, requests: int) -> dict[str, str]:
    """What keeps the rate from being higher, by the last seconds, as a name and a sentence."""
    recent = list(samples)[-_JUDGED_SECONDS:]
    if not recent or not requests:
        return {"by": "nothing", "sentence": "No request has come in the last seconds."}
    shares = [share for sample in recent for share in sample.cards.values()]
    busy = sum(shares) / len(shares) if shares else 0.0
    process = sum(sample.process for sample in recent) / len(recent)
    queued = sum(sample.queued for sample in recent) / len(recent)
    tail = f" {rejected} requests were refused in these seconds." if rejected else ""
    if busy >= _BUSY:
        return {"by": "cards", "sentence": f"Cards: they are at work {busy:.0%} of the time.{tail}"}
    if process >= _FULL:
        return {
            "by": "front end",
            "sentence": f"The front end: this process takes {process:.2f} cores; send larger requests, in "
            f"binary.{tail}",
        }
    if queued >= 1:
        return {
            "by": "machine",
            "sentence": f"The machine: {queued:.0f} requests wait, and cards are at work {busy:.0%} of the "
            f"time; other processes have the cores.{tail}",
        }
    return {
        "by": "clients",
        "sentence": f"The clients: cards are at work {busy:.0%} of the time and nothing waits.{tail}",
    }
