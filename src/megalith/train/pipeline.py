"""The input pipeline of a model: batches read, ids exchanged with the other ranks, rows prefetched.

    thread   | read 1, exchange 1, prefetch 1 | read 2, exchange 2, prefetch 2 |
    main     | compute 0                      | compute 1                      | compute 2

None of these stages reads a weight that training changes, so results are bit by bit those of doing one after
the other. The thread prepares exactly one batch ahead, and only it uses the process group of the index
exchange while it is at work, so every rank issues its collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

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


class Stages(NamedTuple):
    """What is done with a batch before it is computed."""

    exchange: Callable[[Batch], Any] | None = None
    """Sends ids to the ranks that hold their rows; what it returns goes with the batch."""
    prefetch: Callable[[Any], None] | None = None
    """Sees what was received one batch ahead of its lookup: where tables on slower memory fetch rows."""


class PreparedBatch(NamedTuple):
    """A batch that is ready to be computed."""

    batch: Batch
    received: Any
    """What the exchange brought; None where there is none."""
    position: dict[str, Any]
    """The loader's state after this batch, whatever has been read ahead since."""


class Pipeline:
    """Iterates over prepared batches; `position` is where the last one that it gave out leaves the loader.

    With `overlap`, the next batch is prepared while the caller computes. At most `count` batches are read.
    """

    def __init__(
        self,
        loader: BatchSource,
        stages: Stages,
        *,
        count: int | None = None,
        overlap: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        self._loader, self._stages = loader, stages
        self._tracer = tracer or Tracer()
        self._batches = loader.stream()
        self._left = count
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="megalith-pipeline") if overlap else None
        self._next: Future[PreparedBatch | None] | None = None
        self.position = loader.state_dict()
        self._begin()

    def __iter__(self) -> Iterator[PreparedBatch]:
        return self

    def __next__(self) -> PreparedBatch:
        prepared = self._prepare() if self._next is None else self._next.result()
        if prepared is None:
            raise StopIteration
        self.position = prepared.position
        self._begin()
        return prepared

    def settle(self) -> None:
        """Returns when nothing is under way: other users of the index exchange may go on."""
        if self._next is not None:
            wait([self._next])

    def close(self) -> None:
        """Ends the thread and the loader's threads; what was prepared ahead is dropped."""
        self.settle()
        if self._executor is not None:
            self._executor.shutdown()
        self._loader.close()

    def abandon(self) -> None:
        """Leaves after an error without waiting: a rank that is gone would never answer."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._next is None or self._next.done():
            with suppress(Exception):
                self._loader.close()

    def _begin(self) -> None:
        if self._executor is not None:
            self._next = self._executor.submit(self._prepare)

    def _prepare(self) -> PreparedBatch | None:
        if self._left is not None:
            if self._left <= 0:
                return None
            self._left -= 1
        overlap, exchange, prefetch = self._executor is not None, *self._stages
        # In the main thread reading is part of the loop's own "read" span.
        tracer = self._tracer if overlap else Tracer()
        with tracer.span("read batch"):
            batch = next(self._batches, None)
        if batch is None:
            return None
        position = self._loader.state_dict()
        received = None
        if exchange is not None:
            with self._tracer.span("exchange ids"):
                received = exchange(batch)
            if prefetch is not None:
                with self._tracer.span("prefetch rows"):
                    prefetch(received)
        return PreparedBatch(batch, received, position)
