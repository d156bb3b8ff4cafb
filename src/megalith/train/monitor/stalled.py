"""A reader that gives no batch any more: a disk that hangs, readers that wait for each other, a pipe without
a writer. The trainer stands in one and the same wait, and only another thread can say so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TICKS = 4
"""A wait that has lasted for so many ticks is told."""


class StallWatch:
    """Is asked at every tick of a clock whether the wait of the tick before still lasts."""

    def __init__(self, found: Callable[[], None], ended: Callable[[], None]) -> None:
        self._found, self._ended = found, ended
        self._wait, self._seen, self._ticks = 0, 0, 0
        self._is_waiting = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The block waits for a batch."""
        self._wait += 1
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
        self._ended()

    def tick(self) -> None:
        """One more tick."""
        wait = self._wait if self._is_waiting else 0
        self._ticks = self._ticks + 1 if wait and wait == self._seen else 0
        self._seen = wait
        if self._ticks == TICKS:
            self._found()


class Ticker:
    """Calls `tick` every so many seconds in a thread of its own; use as a context."""

    def __init__(self, tick: Callable[[], None], seconds: float) -> None:
        self._tick, self._seconds = tick, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="megalith-stall-watch", daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._tick()
