"""`Loader`: batches of a prepared data set, in a seeded order, from the exact batch where a run stopped.

Threads decode windows ahead of the reader and cut them into batches; the reader takes finished batches in the
order of the plan and joins those that span two windows. The order never depends on threads or timing.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from megalith.core.errors import CheckpointError, ConfigError, DataError
from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.loader.decode import ParquetRows, RowReader
from megalith.data.loader.pieces import empty_batch, join
from megalith.data.loader.plan import RowSharding, ShuffleWindow, plan_epoch
from megalith.data.loader.readers import LocalReaders, WindowQueue, WindowReaders, WindowWork
from megalith.data.loader.steps import EpochSteps, RowRanges, Share

_Pieces = list[Batch]

STATE_VERSION = 1


class Loader:
    """Reads a prepared data set in batches: shuffled, prefetched, and resumable at the exact batch.

    Example:
        # A folder that `megalith data prepare` or `data synth` wrote, or a Dataset that was opened from it.
        loader = mg.Loader("data/criteo", batch_size=2048, seed=1)
        for batch in loader:                  # one epoch of the split `train`
            train_on(batch.dense, batch.values, batch.offsets, batch.labels)
        state = loader.state_dict()           # loader.load_state_dict(state) resumes at the next batch

    `for batch in loader` yields the rest of the current epoch; the next `for` begins the next epoch, in
    another order. `stream()` goes through all epochs without a pause between them. After `epochs` epochs
    there is nothing left to yield; None means no end.

    Several processes pass their `rank` and `world_size`. They read disjoint rows that together are every row
    once, and all take `len(loader)` steps an epoch. `share` says how they divide the rows:

    - `rows`: each rank has rows of its own, shuffles them and makes batches of `batch_size` from them.
    - `slices`: a rank yields its contiguous slice of the very batch that one process would read; `batch_size`
      is that of all ranks together. What is learnt, and the state of the loader, then depend on no world
      size: a state taken on some ranks loads on any other number.
    - `batches`: the batches that one process would read go whole to one rank after the other.

    With `drop_last` every batch is full and the rows that do not fill one on every rank are left out of this
    epoch. Without it nothing is left out: the last batch of an epoch may be short, and so even empty on some
    ranks.

    A window of `shuffle_window_rows` rows on each rank (at least one row group) is decoded and shuffled as
    one; `threads` threads keep `prefetch` windows ready, each about 10 bytes for every column and row.
    """

    def __init__(
        self,
        dataset: Dataset | Path | str,
        splits: Sequence[str] = ("train",),
        batch_size: int = 2048,
        *,
        rank: int = 0,
        world_size: int = 1,
        share: Share = "rows",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        prefetch: int = 2,
        threads: int = 2,
        shuffle_window_rows: int = 262_144,
        epochs: int | None = None,
        rows: RowReader | None = None,
        readers: WindowReaders | None = None,
    ) -> None:
        """`rows` are those of the splits where they are not in prepared files; `readers` read them instead
        of threads of this process."""
        counts = {
            "batch_size": batch_size,
            "prefetch": prefetch,
            "threads": threads,
            "shuffle_window_rows": shuffle_window_rows,
        }
        _check_arguments(splits, rank, world_size, seed, epochs, counts)
        dataset = dataset if isinstance(dataset, Dataset) else Dataset(Path(dataset))
        self.dataset = dataset
        self.splits = tuple(splits)
        self.batch_size = batch_size
        self.epochs = epochs
        self.wait_seconds = 0.0
        """Time for which the reader has waited for a window, over the loader's life."""
        self._rows: RowReader = ParquetRows(dataset, splits) if rows is None else rows
        self._steps = EpochSteps(self._rows.rows, batch_size, rank, world_size, share, drop_last)
        self._sharding = RowSharding(*self._steps.order_rank, shuffle_window_rows, shuffle, seed)
        self._readers: WindowReaders = LocalReaders(threads, prefetch) if readers is None else readers
        self._epoch = 0
        self._batch = 0
        # Weak, so that leaving a `for` by `break` ends the iteration and its threads at once.
        self._active: weakref.ref[Generator[Batch, None, None]] | None = None
        if drop_last and not self._steps.num_steps:
            raise DataError(f"{dataset.folder}: {self._steps.too_few_rows()}")

    @property
    def features(self) -> tuple[FeatureSpec, ...]:
        """The categorical features, in the order of `Batch.values`."""
        return self.dataset.schema.categorical

    @property
    def num_dense(self) -> int:
        """Numeric columns: the width of `Batch.dense`."""
        return len(self.dataset.schema.numeric)

    @property
    def num_rows(self) -> int:
        """Rows of the splits, over all ranks."""
        return self._rows.rows

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of an epoch on each rank."""
        return self._steps.num_steps

    def set_epoch(self, epoch: int) -> None:
        """The next batch will be the first of `epoch`."""
        self.close()
        self._epoch, self._batch = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch; the same on every rank, whatever has been prefetched."""
        return {
            "version": STATE_VERSION,
            "epoch": self._epoch,
            "batch": self._batch,
            "order": self._order(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes where `state` was taken; windows before that position are not decoded."""
        if state.get("version") != STATE_VERSION:
            raise CheckpointError(
                f"The loader's state has version {state.get('version')}, this package reads {STATE_VERSION}; "
                "resume with the package that wrote it."
            )
        ours, theirs = self._order(), state["order"]
        if state["batch"]:
            # At the start of an epoch any order may begin; within one, only the same order may resume.
            for key, value in ours.items():
                if theirs.get(key) != value:
                    raise CheckpointError(
                        f"The run stopped within an epoch with {key}={theirs.get(key)} and now has "
                        f"{key}={value}; resume with the same value, or from the end of an epoch."
                    )
        self.close()
        self._epoch, self._batch = state["epoch"], state["batch"]

    def __iter__(self) -> Iterator[Batch]:
        return self._begin(self._epoch + 1)

    def stream(self) -> Iterator[Batch]:
        """All batches from here on, through the ends of epochs."""
        return self._begin(None)

    def close(self) -> None:
        """Ends the iteration under way and its threads."""
        active = self._active() if self._active is not None else None
        if active is not None:
            active.close()

    def _begin(self, end_epoch: int | None) -> Iterator[Batch]:
        self.close()
        ends = [end for end in (end_epoch, self.epochs) if end is not None]
        batches = self._batches(min(ends, default=None))
        self._active = weakref.ref(batches)
        return batches

    def _batches(self, end_epoch: int | None) -> Generator[Batch, None, None]:
        """Batches from the current position up to `end_epoch`; the only code that starts threads."""
        if not self._steps.num_steps or (end_epoch is not None and self._epoch >= end_epoch):
            return
        tasks = self._windows(end_epoch)
        ready: deque[Batch] = deque()
        queue = self._readers.open(WindowWork(self._rows, self.features, self._sharding))

        def ask() -> None:
            while queue.has_room and (task := next(tasks, None)) is not None:
                queue.submit(*task)

        try:
            ask()
            while end_epoch is None or self._epoch < end_epoch:
                pieces: _Pieces = []
                start, stop = self._steps.own(self._batch)
                missing = stop - start
                while missing > 0:
                    if not ready:
                        ready.extend(self._wait(queue))
                        ask()
                    pieces.append(ready.popleft())
                    missing -= pieces[-1].batch_size
                # Before the yield: whoever holds a batch finds the state of the one after it.
                self._batch += 1
                if self._batch == self._steps.num_steps:
                    self._epoch, self._batch = self._epoch + 1, 0
                yield join(pieces, len(self.features)) if pieces else self.empty_batch()
        finally:
            # Also on `break` and on an error: at most the windows being decoded are waited for.
            queue.close()

    def _windows(self, end_epoch: int | None) -> Iterator[tuple[ShuffleWindow, RowRanges]]:
        """The windows from the current position on, each with the ranges of its rows that are wanted, one for
        each batch; windows in which this rank has no rows are left out."""
        epoch, first_step = self._epoch, self._batch
        while end_epoch is None or epoch < end_epoch:
            for window in plan_epoch(self._rows.groups, self._sharding, epoch):
                ranges = self._steps.ranges(window, first_step)
                if ranges:
                    yield window, ranges
            epoch, first_step = epoch + 1, 0

    def _wait(self, queue: WindowQueue) -> _Pieces:
        start = time.perf_counter()
        try:
            return queue.take()
        finally:
            self.wait_seconds += time.perf_counter() - start

    def empty_batch(self) -> Batch:
        """A batch of no rows, for a rank that must take part in a step without any."""
        schema = self.dataset.schema
        return empty_batch(self.num_dense, schema.weight is not None, schema.event_time is not None)

    def _order(self) -> dict[str, Any]:
        """All that the order of rows depends on, apart from the rank."""
        return {
            "splits": ",".join(self.splits),
            "rows": self._rows.rows,
            "row_groups": len(self._rows.groups),
            "batch_size": self._steps.step_rows,
            "world_size": self._sharding.world_size,
            "shuffle": self._sharding.shuffle,
            "seed": self._sharding.seed,
            "shuffle_window_rows": self._sharding.window_rows,
            "drop_last": self._steps.drop_last,
            **self._rows.origin,
        }


def _check_arguments(
    splits: Sequence[str], rank: int, world_size: int, seed: int, epochs: int | None, counts: dict[str, int]
) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}={count} must be at least 1.")
    if isinstance(splits, str) or not splits:
        raise ConfigError("splits must be a list with the name of at least one split, such as ['train'].")
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} must lie in [0, world_size={world_size}).")
    if seed < 0:
        raise ConfigError(f"seed={seed} must not be negative.")
    if epochs is not None and epochs < 0:
        raise ConfigError(f"epochs={epochs} must not be negative; leave it out for no end.")
