"""`DenseShard`: a rectangle of a table as tensors with a row for every id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.row_block import WEIGHT, PartSpec, Rectangle, RowBlock, kept_parts, take
from megalith.embeddings.stores.row_files import Holds, PoolTable
from megalith.ops.stores.start_values import StartValues, start_values_

_RESET_ROWS = 1 << 16


@dataclass(frozen=True)
class DenseShard:
    """A rectangle whose rows are all in memory; its id, counted from the first row, is where a row lies."""

    first_row: int
    first_column: int
    parts: dict[str, Tensor]
    writes: bool = True
    """Whether a checkpoint takes the rectangle from here; of copies exactly one process writes."""
    start: StartValues | None = None
    """How its rows begin: without it, checkpoints that leave out untrained rows cannot be loaded."""
    touched: TouchedRows | None = field(default=None, compare=False)
    """Which rows took a step, where somebody asks."""

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            whole = (len(self.parts[WEIGHT]), self.parts[WEIGHT].shape[1])
            if tuple(part.shape) not in (whole, whole[:1]):
                raise ValueError(f"'{name}' of a shard of {whole} has shape {tuple(part.shape)}")
        window = self.first_row, self.first_column, self.parts[WEIGHT].shape[1]
        if self.start and (self.start.first_row, self.start.first_column, self.start.dim) != window:
            raise ValueError(f"start values of another rectangle than {window}")

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""
        return self.first_row, self.first_row + self.parts[WEIGHT].shape[0]

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""
        return self.first_column, self.first_column + self.parts[WEIGHT].shape[1]

    @property
    def specs(self) -> dict[str, PartSpec]:
        """The parts that it keeps."""
        return {name: PartSpec.of(part) for name, part in self.parts.items()}

    @property
    def sparse(self) -> bool:
        """Its blocks leave no row out."""
        return False

    @property
    def chunk(self) -> int | None:
        """Its rows are whole."""
        return None

    @property
    def files(self) -> PoolTable | None:
        """Its rows are in no files."""
        return None

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """Views of its rows, in blocks of at most about `max_bytes`, at least a row each."""
        (first, last), (left, right) = self.rows, self.columns
        if first == last or left == right:
            return
        kept = {name: self.parts[name] for name in kept_parts(self.specs, left)}
        row_bytes = sum(part[:1].numel() * part.element_size() for part in kept.values())
        step = max(1, max_bytes // row_bytes)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            rows = slice(begin - first, end - first)
            yield RowBlock(range(begin, end), self.columns, {name: part[rows] for name, part in kept.items()})

    def load(self, block: RowBlock) -> int:
        """Takes what it holds of a block; returns the numbers that it has taken."""
        taken = take(block, Rectangle(self.rows, self.columns), self.specs)
        if taken is None:
            return 0
        if self.touched is not None:
            self.touched.before_all()
        for name, (values, columns) in taken.parts.items():
            target = self.parts[name] if columns is None else self.parts[name][:, columns]
            if isinstance(taken.rows, slice):
                target[taken.rows].copy_(values)
            else:
                target[taken.rows.to(target.device)] = values.to(target.device)
        if self.touched is not None:
            self.touched.touch(taken.rows)
        return taken.numbers

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """The parts of some rows as they are now, copied."""
        return {name: part[ids - self.first_row] for name, part in self.parts.items()}

    def reset(self) -> None:
        """Gives every row its start value, and zeros as optimizer state."""
        if self.start is None:
            raise ValueError(f"the start values of rows {self.rows} are not known")
        if self.touched is not None:
            self.touched.before_all()
            self.touched.touch_all()
        for name, part in self.parts.items():
            if name != WEIGHT:
                part.zero_()
        weight = self.parts[WEIGHT]
        for begin in range(0, len(weight), _RESET_ROWS):
            rows = weight[begin : begin + _RESET_ROWS]
            rows.copy_(start_values_(torch.empty(rows.shape, dtype=rows.dtype), self.start, begin))

    def clear(self) -> None:
        """Makes every number 0."""
        if self.touched is not None:
            self.touched.before_all()
            self.touched.touch_all()
        for part in self.parts.values():
            part.zero_()

    def snapshot(self, holds: Holds, copy: bool) -> DenseShard:
        """A copy of it, or itself where nothing changes it meanwhile."""
        del holds
        return (
            replace(self, parts={name: part.clone() for name, part in self.parts.items()}) if copy else self
        )
