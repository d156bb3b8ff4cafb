"""`TableState`: what a checkpoint takes of a table, and gives back: rows by their global ids.

    state.blocks(64 << 20)    # the rows that this process writes, a bounded number at a time
    state.load(block)         # takes what it holds of a block, whoever wrote it and however it was cut

A table may lie in this process whole, in rectangles, or not at all. What keeps the rows of a rectangle, only
its `TableShard` knows. Since rows travel under their ids, what any number of processes saved under any plan
loads on any other number under any other plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.row_block import WEIGHT, PartSpec, Rectangle, RowBlock, part_specs
from megalith.embeddings.stores.row_files import Holds, PoolTable
from megalith.ops.stores.start_values import StartValues

__all__ = ["WEIGHT", "PartSpec", "RowBlock", "TableShard", "TableState", "part_specs"]


class TableShard(Protocol):
    """A rectangle of a table that lies in this process, whatever keeps its rows."""

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""

    @property
    def writes(self) -> bool:
        """Whether a checkpoint takes the rectangle from here; of copies exactly one process writes."""

    @property
    def specs(self) -> Mapping[str, PartSpec]:
        """The parts that it keeps."""

    @property
    def start(self) -> StartValues | None:
        """How rows begin that were never trained, or None where that is not known."""

    @property
    def sparse(self) -> bool:
        """Whether `blocks` leaves rows out: those that were never trained, or that have no chunk."""

    @property
    def chunk(self) -> int | None:
        """Columns of a chunk where rows are cut into some, and what `blocks` leaves out is zeros. None: rows
        are whole, and it has start values."""

    @property
    def touched(self) -> TouchedRows | None:
        """Marks of the rows that took a step; None where what changed is found by comparing content."""

    @property
    def files(self) -> PoolTable | None:
        """The pool that keeps its rows in files which never change, or None: rows come as blocks only."""

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """Its rows, in blocks of at most about `max_bytes`, at least a row each."""

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block; returns the numbers that it has taken, or had already."""

    def reset(self) -> None:
        """Gives every row its start value, and zeros as optimizer state."""

    def clear(self) -> None:
        """Makes every number 0."""

    def snapshot(self, holds: Holds, copy: bool) -> TableShard:
        """As it is now, to be read by another thread. With `copy` also while training goes on; files are
        held either way."""


class ReadableShard(TableShard, Protocol):
    """A rectangle of which single rows can be read."""

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """The parts of some rows as they are now, copied."""


@dataclass(frozen=True)
class TableState:
    """One logical table, of which this process holds some rectangles."""

    rows: int
    dim: int
    parts: dict[str, PartSpec]
    """The weight first, then the optimizer's state."""
    shards: tuple[TableShard, ...]
    is_raw: bool = False
    """Whether rows travel under raw 64-bit ids, of which `rows` at most have one: a table with another bound
    takes them too."""
    optional: bool = False
    """Whether a checkpoint may lack it, or have it in another shape: it is cleared then."""

    def __post_init__(self) -> None:
        for shard in self.shards:
            (first, last), (left, right) = shard.rows, shard.columns
            if not (0 <= first <= last <= self.rows and 0 <= left <= right <= self.dim):
                raise ValueError(
                    f"a shard {shard.rows} x {shard.columns} outside of {self.rows} x {self.dim}"
                )
            if dict(shard.specs) != self.parts:
                raise ValueError(f"a shard keeps {dict(shard.specs)}, its table {self.parts}")

    def snapshot(self, holds: Holds, copy: bool = True) -> TableState:
        """What this process writes, as it is now, to be saved by another thread."""
        shards = (shard.snapshot(holds, copy) for shard in self.shards if shard.writes)
        return replace(self, shards=tuple(shards))

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """What this process writes, in blocks of at most about `max_bytes`, at least a row each."""
        for shard in self.shards:
            if shard.writes:
                yield from shard.blocks(max_bytes)

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block; returns the numbers that it has taken."""
        return sum(shard.load(block) for shard in self.shards)

    def held_numbers(self, without: Iterable[Rectangle] = ()) -> int:
        """What all blocks of a checkpoint together have to bring, apart from those of some rectangles."""
        rectangles = list(without)
        return sum(
            spec.numbers(shard.rows[1] - shard.rows[0], shard.columns[1] - shard.columns[0])
            - sum(_brought(spec, rectangle, shard) for rectangle in rectangles)
            for shard in self.shards
            for spec in self.parts.values()
        )


def rows_state(table: TableSpec, shard: TableShard) -> TableState:
    """A table whose rows are whole in one shard."""
    return TableState(table.rows, table.dim, dict(shard.specs), (shard,), is_raw=table.is_dynamic)


def _brought(spec: PartSpec, rectangle: Rectangle, shard: TableShard) -> int:
    """How many numbers of a shard's part the blocks of a rectangle bring."""
    rows = min(rectangle.rows[1], shard.rows[1]) - max(rectangle.rows[0], shard.rows[0])
    left, right = rectangle.columns
    columns = min(right, shard.columns[1]) - max(left, shard.columns[0])
    if spec.per == "row" and left != 0:
        # One number a row comes with the row's first column.
        return 0
    return spec.numbers(max(0, rows), max(0, columns))
