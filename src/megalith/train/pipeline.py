"""The input pipeline of a model: batches read, ids exchanged with the other ranks, rows brought into memory.

    thread   | read, exchange 3, resolve 1 | read, exchange 4, resolve 2 |
    main     | compute 0                   | compute 1                   | compute 2

None of these stages reads a weight that training changes, so results are bit by bit those of doing one after
the other, at every depth and window. One thread prepares batches in their order, and only it uses the process
group of the index exchange while it is at work, so every rank issues its collectives in the same order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

from megalith.core.trace import Tracer
from megalith.data.batch import Batch


class BatchSource(Protocol):
    """What a pipeline reads: a loader, or anything else with a position that can be saved."""

    def stream(self) -> Iterator[Batch]:
        """Batches from the current position on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was read."""
        ...

    def close(self) -> None:
        """Ends its threads."""
        ...


class Resolved(Protocol):
    """A batch whose rows are in memory until it is computed or released."""

    def release(self) -> None:
        """Lets the rows leave."""


class Stages(NamedTuple):
    """What is done with a batch before it is computed."""

    exchange: Callable[[Batch], Any]
    """Sends ids to the ranks that hold their rows; returns those whose rows are here."""
    expect: Callable[[Any, int], None]
    """Sees exchanged ids, and how many batches they are ahead of the next one that is resolved."""
    resolve: Callable[[Any], Resolved]
    """Brings the rows of exchanged ids into memory; waits for room where there is none."""


class PreparedBatch(NamedTuple):
    """A batch that is ready to be computed."""

    batch: Batch
    ids: Any
    """What the exchange brought."""
    resolved: Resolved
    position: dict[str, Any]
    """The loader's state after this batch, whatever has been read ahead since."""


class _ExchangedBatch(NamedTuple):
    batch: Batch
    ids: Any
    position: dict[str, Any]


class Pipeline:
    """Iterates over prepared batches; `position` is where the last one that it gave out leaves the loader.

    `depth` batches are prepared while the caller computes; 0 prepares each when it is asked for. The ids of
    `window` more are known in advance, so that rows they use are kept. At most `count` batches are read.
    """

    def __init__(
        self,
        loader: BatchSource,
        stages: Stages,
        *,
        count: int | None = None,
        depth: int = 0,
        window: int = 0,
        tracer: Tracer | None = None,
    ) -> None:
        self._loader, self._stages, self._window = loader, stages, window
        self._tracer = tracer or Tracer()
        self._batches = loader.stream()
        self._left = count
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="megalith-pipeline") if depth else None
        self._exchanged: deque[_ExchangedBatch] = deque()
        self._prepared: deque[Future[PreparedBatch | None]] = deque()
        self._is_settled = self._expects_again = False
        self.position = loader.state_dict()
        self.wait_seconds = 0.0
        """For which the caller has waited while a batch was being read: not for ids or rows of it."""
        self._reads: deque[tuple[float, float]] = deque()
        for _ in range(depth):
            self._begin()

    def __iter__(self) -> Iterator[PreparedBatch]:
        return self

    def __next__(self) -> PreparedBatch:
        asked = time.perf_counter()
        prepared = self._prepare() if self._executor is None else self._prepared.popleft().result()
        self._count_wait(asked, time.perf_counter())
        if prepared is None:
            raise StopIteration
        if self._is_settled:
            # Its rows may have left meanwhile, and so may those of the batches behind it.
            prepared = prepared._replace(resolved=self._stages.resolve(prepared.ids))
            self._resolve_again()
        self.position = prepared.position
        self._begin()
        return prepared

    def peek(self, seconds: float) -> Literal["batch", "end", "waiting"]:
        """Waits so long for the next batch; whether it is there, or there is none. Where none is prepared
        ahead that is not known before it is asked for."""
        if not self._prepared:
            return "batch"
        future = self._prepared[0]
        wait((future,), seconds)
        if not future.done():
            return "waiting"
        return "batch" if future.exception() is not None or future.result() is not None else "end"

    def settle(self) -> None:
        """Returns when nothing is under way: others may exchange ids, and use all of the memory for rows."""
        for future in self._prepared:
            # One after the other: each may wait for the rows of the one before it to leave.
            prepared = None if future.exception() else future.result()
            if prepared is not None:
                prepared.resolved.release()
        self._is_settled, self._expects_again = bool(self._prepared), True

    def close(self) -> None:
        """Ends the thread and the loader's threads; what was prepared ahead is dropped."""
        self.settle()
        self._prepared.clear()
        if self._executor is not None:
            self._executor.shutdown()
        self._loader.close()

    def abandon(self) -> None:
        """Leaves after an error without waiting: a rank that is gone would never answer."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if all(future.done() for future in self._prepared):
            with suppress(Exception):
                self._loader.close()

    def _count_wait(self, asked: float, answered: float) -> None:
        """Adds what reading took of the time in which the caller waited; the rest of it went on beside."""
        for _ in range(len(self._reads)):
            begin, end = self._reads.popleft()
            if end > asked:
                self.wait_seconds += min(end, answered) - max(begin, asked)

    def _begin(self) -> None:
        if self._executor is not None:
            self._prepared.append(self._executor.submit(self._prepare))

    def _resolve_again(self) -> None:
        """Prepares once more what was released by `settle`, in the thread, in the same order."""
        self._is_settled = False
        assert self._executor is not None

        def resolve(prepared: PreparedBatch) -> PreparedBatch:
            return prepared._replace(resolved=self._stages.resolve(prepared.ids))

        for at, future in enumerate(self._prepared):
            prepared = None if future.exception() else future.result()
            if prepared is not None:
                self._prepared[at] = self._executor.submit(resolve, prepared)

    def _prepare(self) -> PreparedBatch | None:
        if self._expects_again:
            # What others resolved meanwhile has moved them further away.
            self._expects_again = False
            for ahead, waiting in enumerate(self._exchanged, start=1):
                self._stages.expect(waiting.ids, ahead)
        while len(self._exchanged) <= self._window and self._exchange():
            pass
        if not self._exchanged:
            return None
        batch, ids, position = self._exchanged.popleft()
        with self._tracer.span("resolve rows"):
            resolved = self._stages.resolve(ids)
        return PreparedBatch(batch, ids, resolved, position)

    def _exchange(self) -> bool:
        """Reads one more batch and exchanges its ids; whether there was one."""
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
        # In the main thread reading is part of the loop's own "read" span.
        tracer = self._tracer if self._executor is not None else Tracer()
        begin = time.perf_counter()
        with tracer.span("read batch"):
            batch = next(self._batches, None)
        self._reads.append((begin, time.perf_counter()))
        if batch is None:
            self._left = 0
            return False
        position = self._loader.state_dict()
        with self._tracer.span("exchange ids"):
            ids = self._stages.exchange(batch)
        self._exchanged.append(_ExchangedBatch(batch, ids, position))
        if self._window:
            self._stages.expect(ids, len(self._exchanged))
        return True
