"""`RawBatches`: raw rows as batches of one size, whatever the pieces in which they are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from megalith.data.batch import Batch
from megalith.data.loader.pieces import cut, join
from megalith.data.prepare.pipeline import OrderedPipeline
from megalith.data.raw.row_source import RawBlock, RowSource
from megalith.data.raw.transform import RowTransform


class _Numbered(NamedTuple):
    first_row: int
    block: RawBlock


class RawBatches:
    """Batches of `batch_size` rows in input order, the last one short, read by threads some pieces ahead.

    It is what a pipeline reads. `take_kept` gives the columns that go with a batch, in the order of batches.
    """

    def __init__(self, transform: RowTransform, rows: RowSource, batch_size: int, threads: int = 1) -> None:
        self._transform, self._rows = transform, rows
        self._batch_size, self._threads = batch_size, threads
        self._kept: deque[list[pa.RecordBatch]] = deque()
        self._num_rows = 0
        self._active: Generator[Batch, None, None] | None = None

    def stream(self) -> Iterator[Batch]:
        """All batches from the beginning."""
        self.close()
        self._num_rows = 0
        self._kept.clear()
        self._active = self._batches()
        return self._active

    def take_kept(self) -> pa.Table | None:
        """The kept columns of the next batch; None where none were asked for."""
        parts = self._kept.popleft()
        return pa.Table.from_batches(parts) if parts else None

    def state_dict(self) -> dict[str, Any]:
        """Nothing: there is no way back into the middle of the input."""
        return {}

    def close(self) -> None:
        """Ends the threads."""
        active, self._active = self._active, None
        if active is not None:
            active.close()

    def _batches(self) -> Generator[Batch, None, None]:
        num_features = len(self._transform.schema.categorical)
        waiting: list[Batch] = []
        kept: list[pa.RecordBatch] = []
        missing = self._batch_size
        pipeline = OrderedPipeline(
            self._rows.items(), self._rows.parse, self._number, self._cut, self._threads
        )
        with closing(pipeline.results()) as results:
            for pieces in results:
                for batch, part in pieces:
                    waiting.append(batch)
                    kept += [] if part is None else [part]
                    missing -= batch.batch_size
                    if missing == 0:
                        self._kept.append(kept)
                        yield join(waiting, num_features)
                        waiting, kept, missing = [], [], self._batch_size
        if waiting:
            self._kept.append(kept)
            yield join(waiting, num_features)

    def _number(self, block: RawBlock) -> _Numbered:
        numbered = _Numbered(self._num_rows, block)
        self._num_rows += block.num_rows
        return numbered

    def _cut(self, numbered: _Numbered) -> list[tuple[Batch, pa.RecordBatch | None]]:
        """On a thread: the block's rows, cut where batches end."""
        first, block = numbered
        rows, size = block.num_rows, self._batch_size
        bounds = [0, *range(size - first % size, rows, size), rows] if rows else [0]
        batches = cut(self._transform.columns(block.rows), self._transform.schema.categorical, bounds)
        kept = block.kept
        parts = [
            None if kept is None else kept.slice(start, stop - start) for start, stop in pairwise(bounds)
        ]
        return list(zip(batches, parts, strict=True))
