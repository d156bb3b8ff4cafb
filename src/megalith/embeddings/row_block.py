"""`RowBlock`: rows of a table by global id, on their way to or from a file, and what a rectangle takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from megalith.core.config import Config
from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import RowOptimizer

WEIGHT = "weight"
PART_NAMES = (WEIGHT, "first", "second")
"""The weight of a row, then what its optimizer keeps of it, in this order wherever parts lie side by side."""

UTILITY, GROWTH = "utility", "growth"
"""Beside these, what blocks of chunked rows have: a number for each chunk, and one for each row."""


class PartSpec(NamedTuple):
    """The weight of a table, or a part of its optimizer's state."""

    dtype: torch.dtype
    per: Literal["element", "row"]
    """Whether a row has a number for every column, or one."""

    def numbers(self, num_rows: int, num_columns: int) -> int:
        """How many numbers so many rows have."""
        return num_rows * (num_columns if self.per == "element" else 1)

    @staticmethod
    def of(part: Tensor) -> PartSpec:
        """Of a tensor [rows, columns] or [rows]."""
        return PartSpec(part.dtype, "element" if part.dim() == 2 else "row")


class PartRecord(Config):
    """A table's weight or a part of its optimizer's state, as a manifest names it."""

    dtype: str
    per: Literal["element", "row"]

    @staticmethod
    def of(spec: PartSpec) -> PartRecord:
        """The record of a part."""
        return PartRecord(dtype=str(spec.dtype).removeprefix("torch."), per=spec.per)


def part_specs(table: TableSpec, optimizer: RowOptimizer) -> dict[str, PartSpec]:
    """The parts of a table under an optimizer: `weight`, and `first` and `second` where it keeps them."""
    specs = {WEIGHT: PartSpec(getattr(torch, table.dtype), "element")}
    for name, shape in zip(PART_NAMES[1:], (optimizer.first_state, optimizer.second_state), strict=True):
        if shape != "none":
            specs[name] = PartSpec(torch.float32, "element" if shape == "full" else "row")
    return specs


class Rectangle(NamedTuple):
    """Some rows and columns of a table: of each the first, and the one behind the last."""

    rows: tuple[int, int]
    columns: tuple[int, int]

    def within(self, other: Rectangle) -> Rectangle | None:
        """What both have, or None."""
        rows = max(self.rows[0], other.rows[0]), min(self.rows[1], other.rows[1])
        columns = max(self.columns[0], other.columns[0]), min(self.columns[1], other.columns[1])
        return Rectangle(rows, columns) if rows[0] < rows[1] and columns[0] < columns[1] else None


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a table, all of their columns or a range of them."""

    ids: range | Tensor
    """Global ids, rising: a run of them, or int64 [rows]."""
    columns: tuple[int, int]
    parts: Mapping[str, Any]
    """By name, tensors or what can be sliced like one: [rows, columns], or [rows] for one number a row. Parts
    with one number a row are in the block that has the row's first column."""


class TakenPart(NamedTuple):
    """What a rectangle takes of one part of a block."""

    values: Tensor
    columns: slice | None
    """Those of the rectangle that they are for; None for one number a row."""


class Taken(NamedTuple):
    """What a rectangle takes of a block."""

    rows: slice | Tensor
    """Rows of the rectangle: a run, or int64 [rows], rising."""
    parts: dict[str, TakenPart]

    @property
    def numbers(self) -> int:
        """How many numbers these are."""
        return sum(part.values.numel() for part in self.parts.values())


def take(block: RowBlock, rectangle: Rectangle, specs: Mapping[str, PartSpec]) -> Taken | None:
    """The part of a block that a rectangle has room for, or None; values are read by this."""
    rows, targets = _rows_within(block.ids, rectangle.rows)
    if rows.start >= rows.stop:
        return None
    left = max(block.columns[0], rectangle.columns[0])
    right = min(block.columns[1], rectangle.columns[1])
    parts = {}
    for name, spec in specs.items():
        if spec.per == "row":
            if block.columns[0] == 0:
                parts[name] = TakenPart(block.parts[name][rows], None)
        elif left < right:
            values = block.parts[name][rows, left - block.columns[0] : right - block.columns[0]]
            columns = slice(left - rectangle.columns[0], right - rectangle.columns[0])
            parts[name] = TakenPart(values, columns)
    return Taken(targets, parts) if parts else None


def kept_parts(specs: Mapping[str, PartSpec], first_column: int) -> list[str]:
    """The parts that a block beginning at a column holds."""
    return [name for name, spec in specs.items() if spec.per == "element" or first_column == 0]


def _rows_within(ids: range | Tensor, rows: tuple[int, int]) -> tuple[slice, slice | Tensor]:
    """Which rows of a block lie in a range of a table's, and where in it: positions, or a run of them."""
    if isinstance(ids, range):
        first, last = max(ids.start, rows[0]), min(ids.stop, rows[1])
        return slice(first - ids.start, last - ids.start), slice(first - rows[0], last - rows[0])
    first, last = torch.searchsorted(ids, torch.tensor(rows)).tolist()
    return slice(first, last), ids[first:last] - rows[0]
