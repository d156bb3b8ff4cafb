"""Rows in segment files that never change: what they are rows of, how they are read, and how they are kept.

    pool.hold()                      # everything on disk, under links of its own: the pool may go on
    SegmentRows(folder, layout, segments).blocks(64 << 20)   # the rows, a segment at a time
    pool.adopt(SegmentRows(...))     # the files become the pool's own, by links where the disk can

A segment file holds rows of all tables of a pool. Which of its records live, `segments` says, not the file.
"""

from __future__ import annotations

import errno
import hashlib
import operator
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from pydantic import Field, NonNegativeInt, model_validator
from torch import Tensor

from megalith.core.config import Config
from megalith.core.errors import StorageError
from megalith.embeddings.row_block import PART_NAMES, PartRecord, PartSpec, RowBlock, kept_parts
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, SegmentRecords, TieredRows

SEGMENT_VERSION = 2
"""That of csrc/stores/segment_format.h."""
_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_NOT_LINKED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


class DamagedSegmentError(StorageError):
    """A segment file is missing, or not what was written; the end of the sentence, a fix, is yet to come."""

    def __init__(self, error: StorageError, path: Path) -> None:
        text = str(error).removesuffix(".").removesuffix("; go back to a checkpoint")
        super().__init__(text if str(path) in text else f"{path} is damaged: {text}")


class StartRecord(Config):
    """What the start values of a table are drawn from, apart from row and column."""

    seed: int
    """Of the run's seed and the table's name."""
    scale: float

    @staticmethod
    def of(start: StartValues) -> StartRecord:
        """The record of some start values."""
        return StartRecord(seed=start.table_seed, scale=start.scale)


class PooledWindow(Config):
    """A table of a pool: the rectangle of the whole table that it is."""

    table: str
    rows: tuple[NonNegativeInt, NonNegativeInt]
    columns: tuple[NonNegativeInt, NonNegativeInt]
    padding: int
    start: StartRecord


class PoolLayout(Config):
    """What the rows of a pool are: files of one pool are another's if their layouts agree."""

    version: int = SEGMENT_VERSION
    digest: int
    """As the files carry it."""
    row_bytes: int
    segment_bytes: int = Field(gt=0, le=1 << 40)
    parts: dict[str, PartRecord]
    """In the order in which they lie in a row."""
    tables: tuple[PooledWindow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> PoolLayout:
        if tuple(self.parts) != PART_NAMES[: len(self.parts)] or not self.parts:
            raise ValueError(f"a row has the parts {', '.join(PART_NAMES)} and no others")
        if any(part.dtype not in _ELEMENT_BYTES for part in self.parts.values()):
            raise ValueError(f"a part is one of {', '.join(_ELEMENT_BYTES)}")
        widths = {window.columns[1] - window.columns[0] for window in self.tables}
        (width,) = widths if len(widths) == 1 else (0,)
        numbers = [width if part.per == "element" else 1 for part in self.parts.values()]
        sizes = [_ELEMENT_BYTES[part.dtype] for part in self.parts.values()]
        if width < 1 or sum(map(operator.mul, numbers, sizes)) != self.row_bytes:
            raise ValueError("the tables of a pool have rows of one shape")
        return self

    @staticmethod
    def of(pool: TieredRows) -> PoolLayout:
        """The layout of a pool."""
        return PoolLayout(
            digest=pool.disk.layout,
            segment_bytes=pool.disk.segment_bytes,
            row_bytes=sum(part[0].numel() * part.element_size() for part in pool.parts),
            parts={name: PartRecord.of(spec) for name, spec in pool_specs(pool.parts).items()},
            tables=_windows(pool.tables),
        )

    def adopts(self, other: PoolLayout) -> bool:
        """Whether a pool of this layout can take files of another as its own."""
        same = other.model_copy(update={"segment_bytes": self.segment_bytes}) == self
        return same and list(self.parts) == list(other.parts) and other.segment_bytes <= self.segment_bytes

    @property
    def specs(self) -> dict[str, PartSpec]:
        """The parts of a row."""
        return {name: PartSpec(getattr(torch, part.dtype), part.per) for name, part in self.parts.items()}


def pool_specs(parts: Sequence[Tensor]) -> dict[str, PartSpec]:
    """The parts of a pool by name, from its tensors."""
    return dict(zip(PART_NAMES, map(PartSpec.of, parts), strict=False))


def layout_digest(tables: Sequence[PooledTable], parts: Sequence[Tensor]) -> int:
    """What `DiskSettings.layout` of a pool is: a digest of its tables, their windows, starts and parts."""
    windows = [window.model_dump_json() for window in _windows(tables)]
    shapes = [(str(part.dtype), tuple(part.shape[1:])) for part in parts]
    digest = hashlib.sha256(repr((SEGMENT_VERSION, windows, shapes)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


class SegmentRows(NamedTuple):
    """Segment files of a folder, and the records of them that hold rows. Reading them writes nothing."""

    folder: Path
    layout: PoolLayout
    segments: tuple[SegmentRecords, ...]

    def blocks(self, max_bytes: int) -> Iterator[tuple[int, RowBlock]]:
        """(number of the table in the pool, rows of it). Memory for one segment is enough."""
        specs, tables = self.layout.specs, self.layout.tables
        step = max(1, max_bytes // self.layout.row_bytes)
        for segment in self.segments:
            for number, ids, parts in self._rows(segment):
                window = tables[number]
                by_name = dict(zip(specs, parts, strict=True))
                kept = {name: by_name[name] for name in kept_parts(specs, window.columns[0])}
                for block in split_rows(ids + window.rows[0], window.columns, kept, step):
                    yield number, block

    def _rows(self, segment: SegmentRecords) -> list[tuple[int, Tensor, list[Tensor]]]:
        pool = self._open()
        try:
            pool.open([segment])
            return list(pool.rows())
        except StorageError as error:
            raise DamagedSegmentError(error, self.folder / segment.name) from error
        finally:
            pool.close()

    def _open(self) -> TieredRows:
        """A pool to read one segment with: an index of all rows would not be bounded."""
        specs, tables = self.layout.specs, self.layout.tables
        left, right = tables[0].columns
        shapes = [(2, right - left) if spec.per == "element" else (2,) for spec in specs.values()]
        parts = [
            torch.empty(shape, dtype=spec.dtype) for shape, spec in zip(shapes, specs.values(), strict=True)
        ]
        start = StartValues(0, "", right - left, 0.0, parts[0].dtype)
        disk = DiskSettings(
            self.folder, self.layout.digest, self.layout.segment_bytes, depth=16, engine="threads", threads=1
        )
        pooled = [PooledTable(window.rows[1] - window.rows[0], start) for window in tables]
        return TieredRows(pooled, parts, disk)


AdoptedFiles = dict[str, Path | None]
"""By name, files that a pool has taken: where a copied one comes from, None for a linked one."""


class RowPool(Protocol):
    """What keeps rows of some tables in segment files."""

    @property
    def layout(self) -> PoolLayout:
        """What its rows are."""

    @property
    def is_new(self) -> bool:
        """Whether it holds no rows and none were ever asked of it."""

    def hold(self) -> SegmentRows:
        """Puts all rows on disk and gives files that hold them, in a folder that the caller removes."""

    def adopt(self, rows: SegmentRows) -> AdoptedFiles:
        """Takes files as its own, of a new pool."""

    def keep(self, files: Iterable[Path]) -> None:
        """Counts files on its disk against its bound that only checkpoints have, after `adopt`."""


class PoolTable(NamedTuple):
    """A table of a pool."""

    pool: RowPool
    number: int


class Holds:
    """The files of row pools, each pool put on disk and held once, until they are released."""

    def __init__(self) -> None:
        self._held: dict[RowPool, SegmentRows] = {}

    def of(self, pool: RowPool) -> SegmentRows:
        """The files that hold the rows of a pool, as they were when they were first asked for."""
        if pool not in self._held:
            self._held[pool] = pool.hold()
        return self._held[pool]

    def release(self) -> None:
        """Lets go of all files: the disk gives back what nothing else uses."""
        for rows in self._held.values():
            shutil.rmtree(rows.folder, ignore_errors=True)
        self._held.clear()


def split_rows(
    ids: Tensor, columns: tuple[int, int], parts: dict[str, Tensor], step: int
) -> Iterator[RowBlock]:
    """Blocks of at most `step` rows each."""
    for begin in range(0, len(ids), step):
        rows = slice(begin, begin + step)
        yield RowBlock(ids[rows], columns, {name: part[rows] for name, part in parts.items()})


def linked(source: Path, target: Path) -> bool:
    """Gives a file a second name; false where the file systems do not allow it."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NOT_LINKED:
            raise
        return False
    return True


def link_or_copy(source: Path, target: Path) -> bool:
    """Gives a file a second name, or copies it where that is not allowed; returns whether it was linked."""
    if linked(source, target):
        return True
    shutil.copyfile(source, target)
    return False


def clear_rows(folder: Path) -> None:
    """Removes the segment files of a pool that is no more, and what it held: a new one begins without.

    Links to them, as checkpoints have, stay.
    """
    for path in folder.glob("held-*"):
        shutil.rmtree(path)
    for path in folder.glob("*.rows"):
        path.unlink()


def _windows(tables: Sequence[PooledTable]) -> tuple[PooledWindow, ...]:
    return tuple(
        PooledWindow(
            table=table.start.table,
            rows=(table.start.first_row, table.start.first_row + table.rows),
            columns=(table.start.first_column, table.start.first_column + table.start.dim),
            padding=table.padding,
            start=StartRecord.of(table.start),
        )
        for table in tables
    )
