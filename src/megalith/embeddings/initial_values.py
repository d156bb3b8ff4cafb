"""The values that a table begins with: a function of (seed, table's name, id, column) alone.

They depend on nothing physical: not on how a table is cut, nor on what holds its rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.ops.embedding.native_tables import allocate_table
from megalith.ops.stores.start_values import StartValues, start_values_


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

    @property
    def first_id(self) -> int:
        """What ids are counted from: the first row, but of a dynamic table ids are no rows."""
        return 0 if self.table.is_dynamic else self.rows[0]

    def start_values(self, seed: int) -> StartValues:
        """How the rows of this rectangle begin."""
        table, _, (first_column, last_column) = self
        return StartValues(
            seed=seed,
            table=table.name,
            dim=last_column - first_column,
            scale=start_scale(table),
            dtype=getattr(torch, table.dtype),
            first_row=self.first_id,
            first_column=first_column,
        )


def start_scale(table: TableSpec) -> float:
    """Half the width of a table's start values.

    A dynamic table may get another bound as it is trained on, so its scale depends on the dim alone: a vector
    begins with a length of about 1/28 whatever its dim.
    """
    if table.init_scale is not None:
        return table.init_scale
    return 1 / (16 * math.sqrt(table.dim)) if table.is_dynamic else 1 / math.sqrt(table.rows)


def initial_values(window: TableWindow, seed: int) -> Tensor:
    """Uniform values of a table, [rows, columns] of the window."""
    start = window.start_values(seed)
    weight = allocate_table(window.rows[1] - window.rows[0], start.dim, start.dtype)
    return start_values_(weight, start)
