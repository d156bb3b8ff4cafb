"""Tables in a pool of rows over a disk, as checkpoints see them.

pool = SegmentPool(tiered_rows)      # one for the life of the rows: checkpoints know files by it
pool.shard(0), pool.shard(1)         # the tables of the pool, each a rectangle of a table
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from megalith.core.errors import StorageError, storage_errors
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.row_block import PartSpec, Rectangle, RowBlock, Taken, kept_parts, take
from megalith.embeddings.stores.row_files import (
    AdoptedFiles,
    DamagedSegmentError,
    Holds,
    PoolLayout,
    PoolTable,
    SegmentRows,
    clear_rows,
    link_or_copy,
    pool_specs,
    split_rows,
)
from megalith.embeddings.stores.saved_shard import SavedShard
from megalith.ops.stores.start_values import StartValues, start_values_, start_values_twin
from megalith.ops.stores.tiered_rows import PooledTable, SegmentRecords, TieredRows

_RESET_ROWS = 1 << 14
_BITS = {2: torch.int16, 4: torch.int32}


class SegmentPool:
    """The files of a pool of rows: put on disk, held by links while they are saved, taken up again."""

    def __init__(self, rows: TieredRows) -> None:
        self.rows, self.layout = rows, PoolLayout.of(rows)

    @property
    def folder(self) -> Path:
        """Where its segment files are; nothing else is."""
        return self.rows.disk.folder

    @property
    def is_new(self) -> bool:
        """Whether it holds no rows and none were ever asked of it."""
        counted = self.rows.statistics()
        return counted.lookups == counted.present_rows == counted.segments == 0

    def shard(self, table: int, writes: bool = True) -> TieredShard:
        """A table of the pool as a rectangle of the whole one."""
        return TieredShard(self, table, writes)

    def hold(self) -> SegmentRows:
        """Puts all rows on disk and links the files into a folder of their own, which the caller removes.

        Links at once: a file is deleted when its rows have moved, and what has no name any more cannot be
        linked, not even while it is open.
        """
        held = self.folder / f"held-{uuid.uuid4().hex[:8]}"
        with storage_errors(held):
            held.mkdir()
            try:
                while (segments := self._linked_into(held)) is None:
                    # A batch that was resolved ahead has moved rows in between. There are few of these, and
                    # training waits for us: the rows are what they were.
                    pass
            except BaseException:
                shutil.rmtree(held, ignore_errors=True)
                raise
        return SegmentRows(held, self.layout, segments)

    def _linked_into(self, folder: Path) -> tuple[SegmentRecords, ...] | None:
        """Files that hold all rows, linked into a folder; None if one was gone by then."""
        for path in folder.iterdir():
            path.unlink()
        segments = tuple(self.rows.flush())
        try:
            for segment in segments:
                link_or_copy(self.folder / segment.name, folder / segment.name)
        except FileNotFoundError:
            return None
        return segments

    def adopt(self, rows: SegmentRows) -> AdoptedFiles:
        """Takes files as its own, by links where that is possible."""
        adopted: AdoptedFiles = {}
        with storage_errors(self.folder):
            clear_rows(self.folder)
            for segment in rows.segments:
                source = rows.folder / segment.name
                adopted[segment.name] = None if link_or_copy(source, self.folder / segment.name) else source
        try:
            self.rows.open(rows.segments)
        except StorageError as error:
            # The same files under other names: the sentence is about those that were given.
            said = StorageError(str(error).replace(str(self.folder), str(rows.folder)))
            raise DamagedSegmentError(said, rows.folder) from error
        return adopted

    def keep(self, files: Iterable[Path]) -> None:
        """Counts files that only checkpoints have against the bound on disk, each once."""
        # A checkpoint may be removed meanwhile, by the process that trains the run.
        with storage_errors(self.folder), suppress(FileNotFoundError):
            disk = self.folder.stat().st_dev
            seen = {path.stat().st_ino for path in self.folder.glob("*.rows")}
            for path in files:
                with suppress(FileNotFoundError):
                    status = path.stat()
                    if status.st_dev == disk and status.st_ino not in seen:
                        seen.add(status.st_ino)
                        self.rows.keep([path])


@dataclass(frozen=True)
class TieredShard:
    """A rectangle whose trained rows are in a pool; all others have start values and lie nowhere."""

    pool: SegmentPool
    table: int
    """Its number in the pool."""
    writes: bool = True
    """Whether a checkpoint takes the rectangle from here; of copies exactly one process writes."""
    touched: TouchedRows | None = field(default=None, compare=False)
    """Which rows took a step, where somebody asks."""

    @property
    def _pooled(self) -> PooledTable:
        return self.pool.rows.tables[self.table]

    @property
    def start(self) -> StartValues:
        """How rows begin that were never trained."""
        return self._pooled.start

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""
        return self.start.first_row, self.start.first_row + self._pooled.rows

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""
        return self.start.first_column, self.start.first_column + self.start.dim

    @property
    def specs(self) -> dict[str, PartSpec]:
        """The parts that it keeps."""
        return pool_specs(self.pool.rows.parts)

    @property
    def sparse(self) -> bool:
        """Rows that were never trained are in no block."""
        return True

    @property
    def chunk(self) -> int | None:
        """Its rows are whole."""
        return None

    @property
    def files(self) -> PoolTable:
        """The pool that keeps its rows, and its number there."""
        return PoolTable(self.pool, self.table)

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """The rows that were trained. What changes the pool meanwhile may move rows past the reader: see
        `snapshot`."""
        self.pool.rows.flush()
        specs, step = self.specs, max(1, max_bytes // self.pool.layout.row_bytes)
        for table, ids, parts in self.pool.rows.rows():
            if table == self.table:
                by_name = dict(zip(specs, parts, strict=True))
                kept = {name: by_name[name] for name in kept_parts(specs, self.columns[0])}
                yield from split_rows(ids + self.rows[0], self.columns, kept, step)

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block; returns its numbers.

        A block that lists ids brings rows that were trained. Of a run of ids, rows that are as they begin,
        with zeros as state, are left out: nothing tells them from rows that were never trained.
        """
        taken = take(block, Rectangle(self.rows, self.columns), self.specs)
        if taken is None:
            return 0
        if isinstance(taken.rows, slice):
            chosen = self._changed(taken, taken.rows)
            ids = chosen + taken.rows.start
        else:
            chosen, ids = torch.arange(len(taken.rows)), taken.rows
        if self.touched is not None:
            self.touched.touch(taken.rows)
        if len(ids):
            self.pool.rows.load(self.table, ids, self._whole_rows(taken, ids, chosen))
        return taken.numbers

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """The parts of some rows as they are now, copied."""
        parts = self.pool.rows.read(self.table, ids - self.rows[0])
        return dict(zip(self.specs, parts, strict=True))

    def reset(self) -> None:
        """Gives every row its start value: those that were trained are written once more."""
        rows = self.pool.rows
        if rows.statistics().present_rows == 0:
            return
        if self.touched is not None:
            self.touched.touch_all()
        rows.flush()
        trained = torch.cat([torch.empty(0, dtype=torch.int64), *self._trained()])
        for ids in trained.split(_RESET_ROWS):
            state = [torch.zeros(len(ids), *part.shape[1:], dtype=part.dtype) for part in rows.parts[1:]]
            rows.load(self.table, ids, [start_values_twin(self.start, ids), *state])

    def clear(self) -> None:
        """Makes every number 0: all rows count as trained then."""
        if self.touched is not None:
            self.touched.touch_all()
        rows = self.pool.rows
        for first in range(0, self._pooled.rows, _RESET_ROWS):
            ids = torch.arange(first, min(first + _RESET_ROWS, self._pooled.rows))
            rows.load(
                self.table, ids, [torch.zeros(len(ids), *p.shape[1:], dtype=p.dtype) for p in rows.parts]
            )

    def snapshot(self, holds: Holds, copy: bool) -> HeldShard:
        """The rows in files that nothing changes any more."""
        del copy
        return HeldShard(self, holds.of(self.pool))

    def _trained(self) -> Iterator[Tensor]:
        return (ids for table, ids, _ in self.pool.rows.rows() if table == self.table)

    def _changed(self, taken: Taken, rows: slice) -> Tensor:
        """Which rows of a run differ from how they begin, in a single bit."""
        changed = torch.zeros(rows.stop - rows.start, dtype=torch.bool)
        for number, name in enumerate(self.specs):
            if name not in taken.parts:
                continue
            values, columns = taken.parts[name]
            begin: Tensor = torch.zeros(values.shape, dtype=values.dtype)
            if number == 0:
                whole = torch.empty(len(changed), self.start.dim, dtype=self.start.dtype)
                begin = start_values_(whole, self.start, rows.start)[:, columns]
            changed |= (_bits(values) != _bits(begin)).view(len(changed), -1).any(dim=1)
        return changed.nonzero().view(-1)

    def _whole_rows(self, taken: Taken, ids: Tensor, chosen: Tensor) -> list[Tensor]:
        """The parts of rows as the pool takes them; what a block does not bring is as it was."""
        width = self.start.dim
        if all(
            name in taken.parts and taken.parts[name].columns in (None, slice(0, width))
            for name in self.specs
        ):
            return [taken.parts[name].values[chosen] for name in self.specs]
        current = self.pool.rows.read(self.table, ids)
        for name, part in zip(self.specs, current, strict=True):
            if name in taken.parts:
                values, columns = taken.parts[name]
                (part if columns is None else part[:, columns]).copy_(values[chosen])
        return current


@dataclass(frozen=True)
class HeldShard(SavedShard[TieredShard]):
    """A rectangle as it was when its files were held."""

    held: SegmentRows

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """The rows that had been trained."""
        return (block for table, block in self.held.blocks(max_bytes) if table == self.live.table)


def _bits(values: Tensor) -> Tensor:
    """As whole numbers, so that equal means the same bits."""
    return values.contiguous().view(_BITS[values.element_size()])
