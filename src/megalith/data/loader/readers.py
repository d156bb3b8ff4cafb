"""Who reads windows: threads of this process, or readers elsewhere (`megalith.data.ingest.ray_readers`).

The loader decides which windows are read, in which order, and what each batch takes of them; a queue of
readers only turns a window into those batches. What is learnt cannot depend on who read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.loader.decode import RowReader
from megalith.data.loader.pieces import cut
from megalith.data.loader.plan import RowSharding, ShuffleWindow, row_order
from megalith.data.loader.steps import RowRanges


@dataclass(frozen=True, slots=True)
class WindowWork:
    """How windows of one loader are read: the same for all of them."""

    rows: RowReader
    features: Sequence[FeatureSpec]
    sharding: RowSharding

    def read(self, window: ShuffleWindow, ranges: RowRanges, place: Any) -> list[Batch]:
        """The wanted ranges of the shuffled window's rows, each a batch or a part of one; `place` is where
        `rows` located the window."""
        order = row_order(window, self.sharding)
        bounds = [0, *accumulate(stop - start for start, stop in ranges)]
        if bounds[-1] < window.rows:
            # Only this rank's rows are gathered; the rest was decoded and checked, and is dropped.
            wanted = np.concatenate([np.arange(start, stop) for start, stop in ranges])
            order = wanted if order is None else order[wanted]
        return cut(self.rows.read_at(place, order), self.features, bounds)


class WindowQueue(Protocol):
    """Windows that are being read for one iteration of a loader."""

    def __len__(self) -> int:
        """Windows that were asked for and not taken."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether one more may be asked for: windows ahead of the trainer are bounded."""
        ...

    def submit(self, window: ShuffleWindow, ranges: RowRanges) -> None:
        """Asks for a window."""
        ...

    def take(self) -> list[Batch]:
        """The batches of the window that was asked for first; waits for them."""
        ...

    def close(self) -> None:
        """Ends all reading; at most the windows being read are waited for."""
        ...


class WindowReaders(Protocol):
    """What opens a queue for every iteration of a loader."""

    def open(self, work: WindowWork) -> WindowQueue:
        """A queue without any window."""
        ...


@dataclass(frozen=True, slots=True)
class LocalReaders:
    """Threads of this process, which keep `prefetch` windows ready."""

    threads: int
    prefetch: int

    def open(self, work: WindowWork) -> WindowQueue:
        """A queue with threads of its own."""
        return _LocalQueue(self, work)


class _LocalQueue:
    def __init__(self, readers: LocalReaders, work: WindowWork) -> None:
        self._work, self._prefetch = work, readers.prefetch
        self._pending: deque[Future[list[Batch]]] = deque()
        self._executor = ThreadPoolExecutor(readers.threads, thread_name_prefix="megalith-loader")

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def has_room(self) -> bool:
        return len(self._pending) < self._prefetch

    def submit(self, window: ShuffleWindow, ranges: RowRanges) -> None:
        self._pending.append(self._executor.submit(self._read, window, ranges))

    def take(self) -> list[Batch]:
        return self._pending.popleft().result()

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _read(self, window: ShuffleWindow, ranges: RowRanges) -> list[Batch]:
        return self._work.read(window, ranges, self._work.rows.locate(window))
