"""The engine's thread: waits for descriptors and for the next deadline, and calls back; it never spins."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

_LONGEST = 3600.0


class EventLoop:
    """A thread that runs callbacks. `call` is for any thread, the rest for callbacks alone.

    `after_each` runs after every round and gives the time, as `time.monotonic` counts, of the next round.
    """

    def __init__(self, after_each: Callable[[], float]) -> None:
        self._after_each = after_each
        self._poll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ends = False
        self._poll.register(self._wake, select.EPOLLIN)
        self.thread = threading.Thread(target=self._run, name="megalith-engine", daemon=True)

    def start(self) -> None:
        """Begins."""
        self.thread.start()

    def wake(self) -> None:
        """Makes it run `after_each`; from any thread."""
        os.eventfd_write(self._wake, 1)

    def call(self, callback: Callable[[], None]) -> None:
        """Runs a callback on the thread, soon; from any thread."""
        self._calls.append(callback)
        self.wake()

    def run(self, callback: Callable[[], None]) -> None:
        """Runs a callback on the thread and waits for it; from any thread."""
        if threading.current_thread() is self.thread:
            callback()
            return
        done: Future[None] = Future()

        def call() -> None:
            try:
                callback()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.call(call)
        done.result()

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Calls back whenever there is something to read."""
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Watches it no more; before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def close(self) -> None:
        """Ends the thread after this round; from any thread."""
        self._ends = True
        self.wake()
        if threading.current_thread() is not self.thread:
            self.thread.join()
            self._poll.close()
            os.close(self._wake)

    def _run(self) -> None:
        until = time.monotonic()
        while not self._ends:
            wait = min(max(0.0, until - time.monotonic()), _LONGEST)
            # Rounded up: a timer that rings too early would ring again.
            for descriptor, _ in self._poll.poll(wait + 0.0005 if wait else 0):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                    continue
                callback = self._callbacks.get(descriptor)
                if callback is not None:
                    self._guarded(callback)
            while self._calls:
                self._guarded(self._calls.popleft())
            until = self._guarded_after()

    def _guarded_after(self) -> float:
        try:
            return self._after_each()
        except Exception:
            sys.excepthook(*sys.exc_info())
            return time.monotonic() + 0.1

    def _guarded(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # One request's mistake must not end the thread of all.
            sys.excepthook(*sys.exc_info())
