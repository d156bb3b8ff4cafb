"""`Refusals`: files and versions that were not taken, why, and when each is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

_LONGEST_SECONDS = 30.0


@dataclass(slots=True)
class _Refusal:
    sentence: str
    pause: float
    until: float


class Refusals:
    """By name; a file that is damaged on its way or comes late is tried again, less and less often."""

    def __init__(self, first_pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first, self._clock = min(first_pause, _LONGEST_SECONDS), clock
        self._held: dict[str, _Refusal] = {}
        self.count = 0
        """Of different names, over the life of the process."""

    def add(self, name: str, sentence: str) -> None:
        """Refuses it for a while; the while doubles when it is refused again."""
        before = self._held.get(name)
        if before is None:
            self.count += 1
        pause = self._first if before is None else min(2 * before.pause, _LONGEST_SECONDS)
        self._held[name] = _Refusal(sentence, pause, self._clock() + pause)

    def current(self) -> dict[str, str]:
        """Those that are not to be tried now, and why."""
        now = self._clock()
        return {name: held.sentence for name, held in self._held.items() if held.until > now}

    def clear(self, keep: Collection[str] = ()) -> None:
        """A version was taken: what came before it is of no interest."""
        self._held = {name: held for name, held in self._held.items() if name in keep}
