"""Results from other threads, on the thread of an event loop, with one wake-up for many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Completions:
    """Calls that are to be made on a loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """From any thread: has `call(argument)` made soon; after the loop has ended nothing is."""
        self._waiting.append((call, argument))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def _run(self) -> None:
        # What is appended from here on wakes the loop again.
        self._woken = False
        while self._waiting:
            call, argument = self._waiting.popleft()
            call(argument)
