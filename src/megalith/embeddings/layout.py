"""How a collection's lookups are told to the operators: one row of integers for each (table, feature)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.schema import TableSpec, feature_order
from megalith.ops.embedding import POOLINGS

_DTYPES = ("float32", "float16", "bfloat16")


class Layout:
    """Features in order, slots as the operators read them, and which outputs are sequences."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        self.features = feature_order(tables)
        positions = {feature: position for position, feature in enumerate(self.features)}
        rows: list[list[int]] = []
        column = 0
        self.sequences: list[tuple[int, TableSpec, str]] = []
        """(slot, table, feature) of every table that does not pool."""
        for number, table in enumerate(tables):
            for feature in table.features:
                pools = table.pooling != "none"
                padding = -1 if table.padding_index is None else table.padding_index
                kind = POOLINGS.index(table.pooling), _DTYPES.index(table.dtype)
                place = (column, -1) if pools else (-1, len(self.sequences))
                rows.append([number, table.rows, table.dim, *kind, positions[feature], *place, padding])
                if pools:
                    column += table.dim
                else:
                    self.sequences.append((len(rows) - 1, table, feature))
        self.output_dim = column
        self.slots: Tensor = torch.tensor(rows)
        self.pooled_slots: Tensor = self.slots[self.slots[:, 3] != POOLINGS.index("none")].contiguous()
