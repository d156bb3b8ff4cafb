"""A pipeline over threads: read one at a time, parse in parallel, number rows in order, work in parallel.

    item -> parse(item) -> number_rows(parsed) -> work(numbered) -> result

Workers take turns at reading, so no reader thread is needed; `number_rows` is called in input order; results
come out in input order. An error comes out where its item stands in the order, after all results before it,
so that the first bad row of the input is the one reported, whatever the threads did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Parsed = TypeVar("Parsed")
Numbered = TypeVar("Numbered")
Result = TypeVar("Result")

_END = object()


class OrderedPipeline(Generic[Item, Parsed, Numbered, Result]):
    """One run over `items`; `results` may be called once."""

    def __init__(
        self,
        items: Iterator[Item],
        parse: Callable[[Item], Parsed],
        number_rows: Callable[[Parsed], Numbered],
        work: Callable[[Numbered], Result],
        threads: int,
    ) -> None:
        self._items, self._parse, self._number_rows, self._work = items, parse, number_rows, work
        self._threads = threads
        self._reading = threading.Lock()
        self._change = threading.Condition()
        self._results: dict[int, Any] = {}
        self._num_read = self._num_numbered = self._num_taken = self._num_busy = 0
        self._exhausted = self._stopped = False

    def results(self) -> Generator[Result, None, None]:
        """The results in input order; closing the generator stops the threads."""
        for _ in range(self._threads):
            threading.Thread(target=self._run, daemon=True).start()
        try:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._num_taken in self._results)
                    result = self._results.pop(self._num_taken)
                    self._num_taken += 1
                    self._change.notify_all()
                if result is _END:
                    return
                if isinstance(result, _Failure):
                    raise result.error
                yield result
        finally:
            with self._change:
                self._stopped = True
                self._change.notify_all()
                # Whoever works on rows must be done before their tables go; a read may hang for ever.
                self._change.wait_for(lambda: self._num_busy == 0)
            if self._reading.acquire(timeout=1.0):
                close = getattr(self._items, "close", None)
                if close is not None:
                    close()
                self._reading.release()

    def _run(self) -> None:
        while True:
            with self._reading:
                with self._change:
                    # Results that wait to be taken hold memory; few may.
                    self._change.wait_for(
                        lambda: self._stopped or self._num_read < self._num_taken + self._threads + 2
                    )
                if self._stopped or self._exhausted:
                    return
                number = self._num_read
                self._num_read += 1
                try:
                    item = next(self._items)
                except StopIteration:
                    self._exhausted = True
                    self._finish(number, _END)
                    return
                except BaseException as error:
                    self._exhausted = True
                    self._finish(number, _Failure(error))
                    return
            with self._change:
                if self._stopped:
                    return
                self._num_busy += 1
            result: object
            try:
                result = self._step(number, item)
            except BaseException as error:
                result = _Failure(error)
            with self._change:
                self._num_busy -= 1
            # The item's memory must not wait for the next one.
            del item
            self._finish(number, result)
            if isinstance(result, _Failure):
                return

    def _step(self, number: int, item: Item) -> Result | None:
        parsed = self._parse(item)
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._num_numbered == number)
            if self._stopped:
                return None
            numbered = self._number_rows(parsed)
            self._num_numbered = number + 1
            self._change.notify_all()
        return self._work(numbered)

    def _finish(self, number: int, result: object) -> None:
        with self._change:
            self._results[number] = result
            self._change.notify_all()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error
