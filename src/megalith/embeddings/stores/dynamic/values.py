"""The values of a batch as a map of ids takes them, and as inner stores take the rows that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from megalith.embeddings.stores.base import RowStore


class MappedValues(NamedTuple):
    """Ids that a map is asked about: all of a batch but the padding ids, which have no row."""

    lookups: Tensor
    values: Tensor
    given: Tensor
    """The lookups of the whole batch."""
    kept: Tensor | None
    """Which of its values these are; None is all."""

    def placed(self, rows: Tensor, unknown: np.ndarray, padding: Sequence[int]) -> Tensor:
        """Rows int32 of all values of the batch, also of padding ids and of ids without a row."""
        found = rows.numpy()
        missing = np.flatnonzero(found < 0)
        if len(missing):
            lookups = self.lookups.numpy()
            order = np.lexsort((lookups[:, 2], lookups[:, 1]))
            tables, firsts = lookups[order, 0], lookups[order, 1]
            found[missing] = unknown[tables[np.searchsorted(firsts, missing, side="right") - 1]]
        if self.kept is None:
            return rows
        whole = torch.empty(len(self.kept), dtype=rows.dtype)
        for table, first, last in self.given.tolist():
            whole[first:last] = padding[table]
        whole[self.kept] = rows
        return whole


def without_padding(lookups: Tensor, values: Tensor, paddings: Sequence[int | None]) -> MappedValues:
    """A batch without the padding ids of tables that have one: they are not counted and get no row."""
    if all(padding is None for padding in paddings):
        return MappedValues(lookups, values, lookups, None)
    kept = torch.ones(len(values), dtype=torch.bool)
    for table, first, last in lookups.tolist():
        padding = paddings[table]
        if padding is not None:
            kept[first:last] = values[first:last] != padding
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    edges = torch.stack([lookups[:, 0], before[lookups[:, 1]], before[lookups[:, 2]]], dim=1)
    return MappedValues(edges.contiguous(), values[kept].contiguous(), lookups, kept)


class InnerLookups(NamedTuple):
    """The lookups of an inner store among those of all dynamic tables."""

    store: RowStore
    numbers: Sequence[int]
    """Of each dynamic table its number there, -1 where it is in another store."""

    def of(self, lookups: Tensor) -> Tensor:
        """Those of its own tables."""
        own = torch.tensor(self.numbers)[lookups[:, 0]]
        chosen = own >= 0
        return torch.cat([own[chosen, None], lookups[chosen, 1:]], dim=1).contiguous()

    def with_others(self, lookups: Tensor, tables: Tensor, values: int) -> tuple[Tensor, Tensor]:
        """The same and one for other rows of each table, which follow the values; and which these are.

        `tables` are those of the other rows, rising.
        """
        own = torch.tensor(self.numbers)[tables]
        here = (own >= 0).nonzero().view(-1)
        numbers, counts = torch.unique_consecutive(own[here], return_counts=True)
        ends = counts.cumsum(0) + values
        added = torch.stack([numbers, ends - counts, ends], dim=1)
        return torch.cat([self.of(lookups), added]).contiguous(), here
