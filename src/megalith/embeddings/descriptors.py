"""How a collection's lookups are described to the operators: a row of integers for each (table, feature)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.schema import TableSpec, feature_order
from megalith.ops.embedding.descriptors import POOLINGS
from megalith.ops.tensors import STORED_DTYPES


class CollectionLookups:
    """The lookups of some tables: features in order, descriptors, and which outputs are sequences."""

    def __init__(self, tables: Sequence[TableSpec]) -> None:
        self.features = feature_order(tables)
        positions = {feature: position for position, feature in enumerate(self.features)}
        rows: list[list[int]] = []
        column = 0
        self.sequences: list[tuple[int, TableSpec, str]] = []
        """(number of the descriptor, table, feature) of every lookup that does not pool."""
        for number, table in enumerate(tables):
            for feature in table.features:
                pools = table.pooling != "none"
                padding = -1 if table.padding_index is None else table.padding_index
                kind = POOLINGS.index(table.pooling), STORED_DTYPES.index(getattr(torch, table.dtype))
                output = (column, -1) if pools else (-1, len(self.sequences))
                rows.append([number, table.rows, table.dim, *kind, positions[feature], *output, padding])
                if pools:
                    column += table.dim
                else:
                    self.sequences.append((len(rows) - 1, table, feature))
        self.output_dim = column
        self.descriptors: Tensor = torch.tensor(rows)
        """int64, a `LookupDescriptor` for each (table, feature)."""
        pools_each = self.descriptors[:, 3] != POOLINGS.index("none")
        self.pooled_descriptors: Tensor = self.descriptors[pools_each].contiguous()
