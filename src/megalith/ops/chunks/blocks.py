"""The shape of chunked rows, and blocks of them outside of a pool: ids, live chunks, state, weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.tensors import STORED_DTYPES

STATE_SHAPES = ("none", "row", "full")
"""What an optimizer keeps of a row: nothing, one number, or one for each live column."""
MOST_CHUNKS = 64
_INDEX_BYTES = 11


@dataclass(frozen=True)
class ChunkShape:
    """What the rows of a pool have in common."""

    dim: int
    width: int
    """Columns of a chunk; divides `dim` into at most 64 chunks."""
    dtype: torch.dtype = torch.float32
    first_state: str = "none"
    second_state: str = "none"

    def __post_init__(self) -> None:
        if self.width < 1 or self.dim % self.width or self.dim // self.width > MOST_CHUNKS:
            widths = [width for width in range(1, self.dim + 1) if self.is_width(width)]
            raise ConfigError(
                f"Chunks of {self.width} do not cut a row of {self.dim} columns into at most {MOST_CHUNKS}; "
                f"use one of {', '.join(map(str, widths))}."
            )

    def is_width(self, width: int) -> bool:
        """Whether chunks of so many columns cut a row."""
        return self.dim % width == 0 and self.dim // width <= MOST_CHUNKS

    @property
    def chunks(self) -> int:
        """Of a whole row."""
        return self.dim // self.width

    @property
    def whole(self) -> int:
        """The mask of a row whose chunks all live, 64 bits with a sign."""
        return self.first_chunks(self.chunks)

    def first_chunks(self, count: int) -> int:
        """The mask of the first chunks, 64 bits with a sign."""
        return -1 if count == MOST_CHUNKS else (1 << count) - 1

    def row_bytes(self, live: int) -> int:
        """What a row with so many live chunks counts as where room is counted: its record, 11 for the index.

        >>> ChunkShape(dim=64, width=16, first_state="row").row_bytes(1)
        87
        """
        numbers = {"none": 0, "row": 1, "full": live * self.width}
        header = -(-(2 + 2 * -(-self.chunks // 16) + 2 * live) // 4) * 4
        state = 4 * (numbers[self.first_state] + numbers[self.second_state])
        weights = live * self.width * self.dtype.itemsize
        record = header + (0 if self.dtype == torch.float32 else 4) + state + weights
        return max(12, -(-record // 4) * 4) + _INDEX_BYTES

    def fields(self) -> list[int]:
        """As the native core reads it."""
        states = STATE_SHAPES.index(self.first_state), STATE_SHAPES.index(self.second_state)
        return [self.dim, self.width, STORED_DTYPES.index(self.dtype), *states]

    def live_columns(self, masks: Tensor) -> Tensor:
        """Whether each column lives, bool [rows, dim], of masks int64 [rows]."""
        live = (masks[:, None] >> torch.arange(self.chunks)) & 1 == 1
        return live.repeat_interleave(self.width, dim=1)


class ExpandedRows(NamedTuple):
    """Rows of all their columns, zeros where a chunk does not live."""

    weight: Tensor
    """[rows, dim]"""
    first: Tensor
    """float32: [rows, dim], [rows] for one number a row, or empty"""
    second: Tensor
    """As `first`."""


class ChunkedBlock(NamedTuple):
    """Some rows of a table, what is of live chunks one row after the other."""

    ids: Tensor
    """int64 [rows], rising"""
    masks: Tensor
    """int64 [rows]: bit c is set where chunk c lives"""
    growth: Tensor
    """bfloat16 [rows]: the utility of columns that do not live"""
    utilities: Tensor
    """bfloat16, for each live chunk"""
    weights: Tensor
    """For each live column."""
    first: Tensor
    """float32, for each live column, [rows] for one number a row, or empty"""
    second: Tensor
    """As `first`."""

    def expanded(self, shape: ChunkShape) -> ExpandedRows:
        """The same rows with all their columns."""
        live = shape.live_columns(self.masks)

        def spread(numbers: Tensor, state: str) -> Tensor:
            if state != "full":
                return numbers
            whole = torch.zeros(live.shape, dtype=numbers.dtype)
            whole[live] = numbers
            return whole

        weight = spread(self.weights, "full")
        return ExpandedRows(
            weight, spread(self.first, shape.first_state), spread(self.second, shape.second_state)
        )


def compressed(
    shape: ChunkShape, ids: Tensor, masks: Tensor, growth: Tensor, utilities: Tensor, rows: ExpandedRows
) -> ChunkedBlock:
    """A block of rows that are given with all their columns."""
    live = shape.live_columns(masks)

    def gathered(numbers: Tensor, state: str) -> Tensor:
        return numbers[live] if state == "full" else numbers

    weights = gathered(rows.weight, "full")
    states = gathered(rows.first, shape.first_state), gathered(rows.second, shape.second_state)
    return ChunkedBlock(ids, masks, growth, utilities, weights, *states)
