"""A collection's lookups: how operators are told of them, by integers for each (table, feature); results."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.schema import TableSpec, feature_order
from megalith.ops.embedding.descriptors import POOLINGS, LookupDescriptor
from megalith.ops.tensors import STORED_DTYPES

_ROWS, _DIM, _POOLING, _FEATURE, _COLUMN, _SEQUENCE, _PADDING, _LAYOUT = (
    LookupDescriptor._fields.index(name)
    for name in ("rows", "dim", "pooling", "feature", "column", "sequence", "padding", "layout")
)


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
                rows.append([number, table.rows, table.dim, *kind, positions[feature], *output, padding, 0])
                if pools:
                    column += table.dim
                else:
                    self.sequences.append((len(rows) - 1, table, feature))
        self.output_dim = column
        self.descriptors: Tensor = torch.tensor(rows)
        """int64, a `LookupDescriptor` for each (table, feature)."""
        pools_each = self.descriptors[:, _POOLING] != POOLINGS.index("none")
        self.pooled_descriptors: Tensor = self.descriptors[pools_each].contiguous()

    def over(
        self,
        rows: Sequence[int],
        paddings: Sequence[int],
        *,
        one_feature_each: bool,
        layouts: Sequence[int] | None = None,
    ) -> CollectionLookups:
        """The same lookups over physical rows: by table, how many there are and which stands for padding.

        With `one_feature_each` every lookup reads ids of its own, in the order of the descriptors. `layouts`
        says of each table how its rows lie (positions in LAYOUTS); all are whole where it is not given.
        """
        lookups = copy(self)
        descriptors = self.descriptors.clone()
        tables = descriptors[:, 0]
        descriptors[:, _ROWS] = torch.tensor(rows)[tables]
        descriptors[:, _PADDING] = torch.tensor(paddings)[tables]
        if layouts is not None:
            descriptors[:, _LAYOUT] = torch.tensor(layouts)[tables]
        if one_feature_each:
            descriptors[:, _FEATURE] = torch.arange(len(descriptors))
        lookups.descriptors = descriptors
        lookups.pooled_descriptors = descriptors[
            descriptors[:, _POOLING] != POOLINGS.index("none")
        ].contiguous()
        return lookups

    def rows_of(self, tables: Sequence[int]) -> Tensor:
        """Descriptors that read one row of each of some tables: a feature with a sum for each, in order."""
        firsts = [self.descriptors[self.descriptors[:, 0] == table][0] for table in tables]
        single = torch.stack(firsts)
        single[:, _POOLING] = POOLINGS.index("sum")
        single[:, _FEATURE] = torch.arange(len(tables))
        single[:, _COLUMN] = single[:, _DIM].cumsum(0) - single[:, _DIM]
        single[:, _SEQUENCE] = single[:, _PADDING] = -1
        return single


class Lookup(NamedTuple):
    """What one call reads: pooled vectors side by side, and the sequences of tables that do not pool."""

    pooled: Tensor
    """[batch, output_dim], table by table, feature by feature"""
    sequences: dict[tuple[str, str], Tensor]
    """(table, feature) -> [ids of that feature, dim], in the order of `values`"""


class PendingTables(NamedTuple):
    """A lookup that was started."""

    outputs: tuple[Tensor, ...]
