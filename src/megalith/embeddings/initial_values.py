"""The values that a table begins with: a function of the seed, the table's name and the row alone."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.ops.embedding.native_tables import allocate_table

_PART_ROWS, _BLOCK_ROWS = 1 << 20, 1 << 16
"""Rows whose start values come from one generator, and rows that are drawn at a time."""


class TableWindow(NamedTuple):
    """Says of a table that it is a rectangle of a larger one, and so begins with the same values."""

    table: TableSpec
    """The larger one."""
    rows: tuple[int, int]
    columns: tuple[int, int]

    @classmethod
    def whole(cls, table: TableSpec) -> TableWindow:
        """A table that is not part of a larger one."""
        return cls(table, (0, table.rows), (0, table.dim))


def initial_values(window: TableWindow, seed: int) -> Tensor:
    """Uniform values of a table, [rows, columns] of the window.

    They are drawn a part of the table at a time, each part from a generator of its own, so that a window far
    down a huge table does not draw what is above it.
    """
    table, (first_row, last_row), (first_column, last_column) = window
    scale = 1 / math.sqrt(table.rows) if table.init_scale is None else table.init_scale
    dtype: torch.dtype = getattr(torch, table.dtype)
    weight = allocate_table(last_row - first_row, last_column - first_column, dtype)
    for part in range(first_row // _PART_ROWS, (last_row - 1) // _PART_ROWS + 1):
        key = f"{seed}:{table.name}:{part}" if part else f"{seed}:{table.name}"
        digest = hashlib.sha256(key.encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        # In float32 whatever the type, and a block at a time: the whole is never in memory twice.
        for begin in range(part * _PART_ROWS, min(last_row, (part + 1) * _PART_ROWS), _BLOCK_ROWS):
            end = min(begin + _BLOCK_ROWS, (part + 1) * _PART_ROWS, table.rows)
            drawn = torch.empty(end - begin, table.dim).uniform_(-scale, scale, generator=generator)
            low, high = max(begin, first_row), min(end, last_row)
            if low < high:
                kept = drawn[low - begin : high - begin, first_column:last_column]
                weight[low - first_row : high - first_row].copy_(kept)
    return weight
