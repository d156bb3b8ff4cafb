"""How quick a version is loaded: in short pieces, with pauses between them while others are served.

The process that loads has the priority of all, since it also starts cards in the place of those that are
lost, and a process of low priority that holds what cards need would keep them waiting. It takes its share of
a core's time and no more: after every piece it pauses by what the piece took, and does what it is told
meanwhile. CPU time counts, not that of the clock, so that a busy machine slows a load down only once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORTEST = 0.002
"""Seconds of a pause; less is saved up."""


class LoadPace:
    """Called between the pieces of a load."""

    def __init__(self, share: float, wait: Callable[[float], None]) -> None:
        """`wait` takes seconds, 0 among them, and does what comes in meanwhile."""
        self._factor, self._wait = 1 / share - 1, wait
        self._owed, self._counted = 0.0, time.thread_time()

    def __call__(self) -> None:
        """A piece is done."""
        self._owed += self._factor * (time.thread_time() - self._counted)
        if self._owed >= _SHORTEST:
            self._wait(self._owed)
            self._owed = 0.0
        else:
            self._wait(0.0)
        self._counted = time.thread_time()
