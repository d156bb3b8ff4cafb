"""Predictions of many plans, on as many processes as there are cores.

Results come back in the order of the plans, and batches have a fixed size, so that a search takes the same
decisions with one process or eight. Workers are forked when the first batch comes: they inherit the job and
its caches, and only choices and predictions travel.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from types import TracebackType
from typing import Any, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_asked: Callable[[Any], Any] | None = None


class Workers(Generic[Question, Answer]):
    """Asks one function many questions; with one worker no process is started."""

    def __init__(self, function: Callable[[Question], Answer], workers: int) -> None:
        self._function = function
        self._pool: Pool | None = None
        self._workers = workers if "fork" in multiprocessing.get_all_start_methods() else 1

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        # A few questions are answered sooner than processes start.
        if self._workers == 1 or (self._pool is None and len(questions) < 2 * self._workers):
            return [self._function(question) for question in questions]
        pool = self._start()
        return pool.map(_answer, questions, chunksize=max(1, len(questions) // (4 * self._workers)))

    def _start(self) -> Pool:
        if self._pool is None:
            fork = multiprocessing.get_context("fork")
            self._pool = fork.Pool(self._workers, initializer=_remember, initargs=(self._function,))
        return self._pool

    def __enter__(self) -> Workers[Question, Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()


def _remember(function: Callable[[Any], Any]) -> None:
    global _asked
    _asked = function


def _answer(question: Any) -> Any:
    assert _asked is not None
    return _asked(question)
