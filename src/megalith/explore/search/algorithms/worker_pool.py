"""One function over many arguments, on as many processes as there are cores.

Results come back in the order of the arguments, and batches have a fixed size, so that a search takes the
same decisions with one process or eight. Processes are forked when the first batch comes: they inherit the
job and its caches, and only candidates and predictions travel.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from types import TracebackType
from typing import Any, Generic, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_function_of_this_worker: Callable[[Any], Any] | None = None


class WorkerPool(Generic[Argument, Result]):
    """Calls one function with many arguments; with one worker no process is started."""

    def __init__(self, function: Callable[[Argument], Result], workers: int) -> None:
        self._function = function
        self._pool: Pool | None = None
        self._workers = workers if "fork" in multiprocessing.get_all_start_methods() else 1

    def map(self, arguments: Sequence[Argument]) -> list[Result]:
        """The function's result for each argument, in their order."""
        # A few calls are done sooner than processes start.
        if self._workers == 1 or (self._pool is None and len(arguments) < 2 * self._workers):
            return [self._function(argument) for argument in arguments]
        pool = self._start()
        return pool.map(_call, arguments, chunksize=max(1, len(arguments) // (4 * self._workers)))

    def _start(self) -> Pool:
        if self._pool is None:
            fork = multiprocessing.get_context("fork")
            # Until a worker has the usual handler, a signal that tells it to end has to wait.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            try:
                self._pool = fork.Pool(self._workers, initializer=_initialise, initargs=(self._function,))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._pool

    def __enter__(self) -> WorkerPool[Argument, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()


def _initialise(function: Callable[[Any], Any]) -> None:
    global _function_of_this_worker
    _function_of_this_worker = function
    # A handler of the process that forked would keep a worker alive that is told to end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _call(argument: Any) -> Any:
    assert _function_of_this_worker is not None
    return _function_of_this_worker(argument)
