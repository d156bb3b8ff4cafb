"""A row pool with room for every row: what `TieredRows` must be indistinguishable from, but for slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from megalith.ops.stores.start_values import start_values_twin
from megalith.ops.stores.tiered_rows import PooledTable


class TieredRowsTwin:
    """All rows of all tables in memory, the last slot for padding; `like` are parts of another pool."""

    def __init__(self, tables: Sequence[PooledTable], like: Sequence[Tensor]) -> None:
        self.tables = tuple(tables)
        counts = torch.tensor([0, *(table.rows for table in tables)])
        self._first = counts.cumsum(0).tolist()
        rows = self._first[-1]
        self.parts = [torch.zeros(rows + 1, *part.shape[1:], dtype=part.dtype) for part in like]
        for table, first in zip(tables, self._first, strict=False):
            values = start_values_twin(table.start, torch.arange(table.rows))
            self.parts[0][first : first + table.rows] = values
        self._trained = torch.zeros(rows, dtype=torch.bool)

    @property
    def padding_slot(self) -> int:
        """The slot that reads as zeros."""
        return self._first[-1]

    def resolve(self, lookups: Tensor, values: Tensor, batch: int, trains: bool) -> Tensor:
        """Slots of the ids of a batch."""
        slots = torch.full((len(values),), -1, dtype=torch.int64)
        for table, first, last in lookups.tolist():
            ids = values[first:last].long()
            own = ids + self._first[table]
            padded = ids == self.tables[table].padding
            slots[first:last] = torch.where(padded, self.padding_slot, own)
            if trains:
                self._trained[own[~padded]] = True
        return slots

    def load(self, table: int, ids: Tensor, parts: Sequence[Tensor]) -> None:
        """Takes rows as they are given."""
        own = ids + self._first[table]
        self._trained[own] = True
        for part, given in zip(self.parts, parts, strict=True):
            part[own] = given

    def read(self, table: int, ids: Tensor) -> list[Tensor]:
        """The rows of some ids as they are now."""
        return [part[ids + self._first[table]] for part in self.parts]

    def rows(self) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
        """(table, ids, parts) of every row that was ever trained or loaded."""
        for number, table in enumerate(self.tables):
            first = self._first[number]
            ids = self._trained[first : first + table.rows].nonzero().view(-1)
            yield number, ids, [part[first + ids] for part in self.parts]
