"""`DenseStore`: a row in memory for every id; the id is the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megalith.embeddings.initial_values import initial_values
from megalith.embeddings.row_block import WEIGHT
from megalith.embeddings.stores.base import RowCache, StoreBytes, StoredTable, TierCounts, WholeRowSteps
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.embedding.native_tables import allocate_table, allocate_zeros
from megalith.ops.optimizer.steps import PhysicalRows


class DenseStore(WholeRowSteps):
    """One table, whole in memory with its optimizer state."""

    ids_are_slots = True
    pools = (None,)

    def __init__(
        self, table: StoredTable, seed: int, device: torch.device | str = "cpu", *, begins: bool = True
    ) -> None:
        """Without `begins` rows are zeros until somebody writes them, and take no memory until then."""
        self.tables, self._seed = (table,), seed
        rows, dim, optimizer = table.spec.rows, table.spec.dim, table.optimizer

        def state(shape: str) -> Tensor:
            if shape == "none":
                return torch.zeros(0, device=device)
            # On huge pages like the rows: numbers of two rows are rarely on one page.
            columns = dim if shape == "full" else 1
            numbers = (
                allocate_table(rows, columns, torch.float32).zero_()
                if begins
                else allocate_zeros(rows, columns, torch.float32)
            )
            return (numbers if shape == "full" else numbers.view(-1)).to(device)

        if begins:
            weight = initial_values(table.window, seed).to(device)
        else:
            weight = allocate_zeros(rows, dim, getattr(torch, table.spec.dtype)).to(device)
        self.rows = (PhysicalRows(weight, state(optimizer.first_state), state(optimizer.second_state)),)

    def padding(self, table: int) -> int:
        """The padding id itself."""
        padding = self.tables[table].spec.padding_index
        return -1 if padding is None else padding

    def expect(self, lookups: Tensor, values: Tensor, ahead: int) -> None:
        """Every row is in memory anyway."""

    def resolve(self, lookups: Tensor, values: Tensor, *, trains: bool, wait: bool) -> tuple[Tensor, int]:
        """The ids."""
        return values, 0

    def arrive(self, ticket: int) -> Tensor | None:
        """Rows are always in memory."""
        return None

    def release(self, ticket: int) -> None:
        """No row ever leaves."""

    def shard(self, table: int, writes: bool = True) -> TableShard:
        """The rows as they lie in memory: loading writes into them."""
        weight, first, second, _ = self.rows[table]
        parts = {WEIGHT: weight, "first": first, "second": second}
        window = self.tables[table].window
        kept = {name: part for name, part in parts.items() if part.numel()}
        return DenseShard(window.rows[0], window.columns[0], kept, writes, window.start_values(self._seed))

    def states(self, table: int) -> Mapping[str, TableState]:
        """None."""
        return {}

    def bytes(self) -> StoreBytes:
        """All in memory."""
        weight, first, second, _ = self.rows[0]
        state = sum(part.numel() * part.element_size() for part in (first, second))
        return StoreBytes(weights=weight.numel() * weight.element_size(), state=state)

    def counts(self) -> TierCounts:
        """There is one tier."""
        return TierCounts()

    def caches(self) -> Sequence[RowCache]:
        """None."""
        return ()
