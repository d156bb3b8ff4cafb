"""`GrowingLoader`: batches of files that come while it reads, in their order, from the exact row on.

Rows of a file are shuffled within it, by windows as those of a data set; the rows after its last whole batch
begin the next batch. What was read is a function of the order of the files alone: not of when they came, nor
of kills. The position names the file and the row.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from megalith.core.errors import CheckpointError
from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.growing.files import GrowingFiles
from megalith.data.growing.ledger import FileLedger
from megalith.data.growing.rows import GrowingRows
from megalith.data.growing.settings import GrowingConfig
from megalith.data.ingest.dataset import RawDataset
from megalith.data.loader.pieces import join
from megalith.data.loader.plan import RowSharding, ShuffleWindow, plan_epoch
from megalith.data.loader.readers import LocalReaders, WindowQueue, WindowReaders, WindowWork
from megalith.data.loader.steps import RowRanges

STATE_VERSION = 1
NO_EPOCH = 1 << 40
"""Steps of an epoch that never ends."""

_Place = tuple[int, int]
"""The number of a file, and how many rows of it have been read."""


class GrowingLoader:
    """Stands where a `Loader` does; there are no epochs."""

    def __init__(
        self,
        dataset: RawDataset,
        config: GrowingConfig,
        batch_size: int,
        ledger: FileLedger,
        *,
        shuffle: bool = True,
        seed: int = 0,
        prefetch: int = 2,
        threads: int = 2,
        shuffle_window_rows: int = 262_144,
        readers: WindowReaders | None = None,
    ) -> None:
        """Reads nothing yet."""
        self.dataset, self.batch_size = dataset, batch_size
        self.wait_seconds = 0.0
        self._config, self._ledger = config, ledger
        self._sharding = RowSharding(0, 1, shuffle_window_rows, shuffle, seed)
        self._readers: WindowReaders = LocalReaders(threads, prefetch) if readers is None else readers
        self._at: _Place = 0, 0
        self._interrupted = threading.Event()
        self._active: weakref.ref[Generator[Batch, None, None]] | None = None

    def __len__(self) -> int:
        return NO_EPOCH

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The categorical features, in the order of `Batch.values`."""
        return self.dataset.schema.categorical

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch: a file, and the rows of it that have been read."""
        number, row = self._at
        index = self._ledger.find(number)
        return {
            "version": STATE_VERSION,
            "kind": "growing",
            "number": number,
            "file": None if index is None else index.name,
            "row": row,
            "order": self._order(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""
        if state.get("kind") != "growing" or state.get("version") != STATE_VERSION:
            raise CheckpointError(
                "The run was trained on data that does not grow; go on without data.growing, or start anew."
            )
        number, row, name = state["number"], state["row"], state["file"]
        index = self._ledger.find(number)
        if row:
            for key, value in self._order().items():
                if state["order"].get(key) != value:
                    raise CheckpointError(
                        f"The run stopped within {name} with {key}={state['order'].get(key)} and now has "
                        f"{key}={value}; resume with the same value."
                    )
        if name is not None and (index is None or index.name != name):
            raise CheckpointError(
                f"{self._ledger.path} does not say that file {number} was {name}, where the run stopped; it "
                "is of another run, or damaged."
            )
        self.close()
        self._at = number, row

    def stream(self) -> Iterator[Batch]:
        """All batches from here on; waits for files, until the marker is there."""
        self.close()
        batches = self._batches()
        self._active = weakref.ref(batches)
        return batches

    def interrupt(self) -> None:
        """Whoever waits for a file waits no more, and the stream ends; from any thread."""
        self._interrupted.set()

    def close(self) -> None:
        """Ends the iteration under way and its threads."""
        active = self._active() if self._active is not None else None
        if active is not None:
            active.close()
        self._interrupted.clear()

    def _batches(self) -> Generator[Batch, None, None]:
        rows = GrowingRows(self.dataset.reader)
        files = GrowingFiles(self.dataset, self._config, self._ledger)
        work = _Work(rows, files, self._sharding, self.batch_size, self._at)
        queue = self._readers.open(WindowWork(rows, self.features, self._sharding))
        ready: deque[tuple[Batch, _Place]] = deque()
        places: deque[list[_Place]] = deque()
        pieces: list[Batch] = []
        missing = self.batch_size
        try:
            while True:
                while queue.has_room and (task := work.next()) is not None:
                    window, ranges, after = task
                    queue.submit(window, ranges)
                    places.append(after)
                if not ready and not self._wait(queue, places, ready, work):
                    return
                while ready:
                    piece, at = ready.popleft()
                    pieces.append(piece)
                    missing -= piece.batch_size
                    if not missing:
                        self._at = at
                        rows.forget(at[0])
                        yield join(pieces, len(self.features))
                        pieces, missing = [], self.batch_size
        finally:
            queue.close()

    def _wait(
        self, queue: WindowQueue, places: deque[list[_Place]], ready: deque[tuple[Batch, _Place]], work: _Work
    ) -> bool:
        """Waits for the next window, or for a file; False where there will be none."""
        began = time.perf_counter()
        try:
            if len(queue):
                ready.extend(zip(queue.take(), places.popleft(), strict=True))
                return True
            return not work.has_ended() and not self._interrupted.wait(self._config.look_seconds)
        finally:
            self.wait_seconds += time.perf_counter() - began

    def _order(self) -> dict[str, Any]:
        """All that the order of the rows of a file depends on."""
        sharding = self._sharding
        return {
            "batch_size": self.batch_size,
            "shuffle": sharding.shuffle,
            "seed": sharding.seed,
            "shuffle_window_rows": sharding.window_rows,
        }


class _Work:
    """The windows that are to be read, one after the other, cut where batches end."""

    def __init__(
        self, rows: GrowingRows, files: GrowingFiles, sharding: RowSharding, batch_size: int, at: _Place
    ) -> None:
        self._rows, self._files, self._sharding, self._batch_size = rows, files, sharding, batch_size
        self._number, self._skip = at
        self._windows: deque[ShuffleWindow] = deque()
        self._file_rows = 0
        self._filled = 0
        """Rows of the batch that the next window goes on with."""

    def next(self) -> tuple[ShuffleWindow, RowRanges, list[_Place]] | None:
        """A window, its rows by batch, and the place after each; None where no file is there."""
        while not self._windows:
            index = self._files.next(self._number)
            if index is None:
                return None
            groups = self._rows.begin(self._number, index)
            self._file_rows = index.rows
            self._windows.extend(
                window
                for window in plan_epoch(groups, self._sharding, self._number)
                if window.first_row + window.rows > self._skip
            )
            if not self._windows:
                self._number, self._skip = self._number + 1, 0
        window = self._windows.popleft()
        start = max(self._skip - window.first_row, 0)
        ranges, after = [], []
        while start < window.rows:
            stop = min(start + self._batch_size - self._filled, window.rows)
            ranges.append((start, stop))
            read = window.first_row + stop
            after.append((self._number + 1, 0) if read == self._file_rows else (self._number, read))
            self._filled = (self._filled + stop - start) % self._batch_size
            start = stop
        if not self._windows:
            self._number, self._skip = self._number + 1, 0
        return window, ranges, after

    def has_ended(self) -> bool:
        """Whether no file will come."""
        return not self._windows and self._files.has_ended(self._number)
