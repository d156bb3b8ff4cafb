"""A pool of chunked rows in plain torch: a dictionary of rows by (table, id)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape, ExpandedRows, compressed
from megalith.ops.chunks.chunked_rows import FIRST_ABSENT, PADDING_SLOT, ResolvedSlots
from megalith.ops.stores.start_values import start_values_twin
from megalith.ops.stores.tiered_rows import PooledTable


@dataclass
class TwinRow:
    """A row with all its columns, of which those in `mask` count."""

    mask: int
    growth: Tensor
    """bfloat16 []"""
    utilities: Tensor
    """bfloat16 [chunks]"""
    weight: Tensor
    """[dim]"""
    first: Tensor
    """float32 [dim], [1] or [0]"""
    second: Tensor


class ChunkedRowsTwin:
    """What `ChunkedRows` must be indistinguishable from, but for slots and bytes."""

    def __init__(self, tables: Sequence[PooledTable], shape: ChunkShape, row_bytes: Sequence[int]) -> None:
        self.tables, self.shape, self.row_bytes = tuple(tables), shape, row_bytes
        self.rows: dict[tuple[int, int], TwinRow] = {}
        self._numbers: list[tuple[int, int]] = [(-1, -1)]
        self.raw_ids: list[Tensor | None] = [None] * len(self.tables)
        self.ranked_rows = [table.rows for table in self.tables]

    def map_rows(self, table: int, raw_ids: Tensor, ranked_rows: int) -> None:
        """Says which ids the rows of a table have, and which compete."""
        self.raw_ids[table], self.ranked_rows[table] = raw_ids, ranked_rows

    def id_of(self, table: int, row: int) -> int:
        """What start values, ties and rounding of a row depend on."""
        raw_ids = self.raw_ids[table]
        return row if raw_ids is None else int(raw_ids[row])

    def key_of(self, slot: int) -> tuple[int, int]:
        """(table, id) of a slot that `resolve` gave."""
        return self._numbers[slot]

    def resolve(
        self, lookups: Tensor, values: Tensor, *, trains: bool, first_chunks: int = 0, room: int = 0
    ) -> ResolvedSlots:
        """Slots of the ids of a batch; those of records are numbers of this twin's own."""
        slots = torch.zeros(len(values), dtype=torch.int32)
        absent: dict[tuple[int, int], int] = {}
        for table, first, last in lookups.tolist():
            for position in range(first, last):
                key = table, int(values[position])
                if key[1] == self.tables[table].padding:
                    slots[position] = PADDING_SLOT
                    continue
                bytes_ = self.row_bytes[first_chunks]
                is_new = key not in self.rows and key not in absent
                if trains and is_new and first_chunks and room >= bytes_:
                    self.rows[key] = self._begin(key, self.shape.first_chunks(first_chunks), 0.0)
                    room -= bytes_
                if key in self.rows:
                    self._numbers.append(key)
                    slots[position] = len(self._numbers) - 1
                else:
                    slots[position] = FIRST_ABSENT + (absent.setdefault(key, len(absent)) if trains else 0)
        listed = torch.tensor(list(absent) if trains else [], dtype=torch.int64).view(-1, 2)
        return ResolvedSlots(slots, listed, room)

    def rewrite(
        self,
        table: int,
        ids: Tensor,
        masks: Tensor,
        utilities: Tensor | None = None,
        growth: Tensor | None = None,
    ) -> None:
        """Gives rows other live chunks."""
        for number, (row, mask) in enumerate(zip(ids.tolist(), masks.tolist(), strict=True)):
            key, utility = (table, row), 0.0 if utilities is None else float(utilities[number])
            if mask == 0:
                self.rows.pop(key, None)
                continue
            old = self.rows.get(key)
            made = self._begin(key, mask, utility)
            if old is not None:
                kept = self._columns(mask & old.mask)
                made.weight[kept] = old.weight[kept]
                made.growth = old.growth
                states = (
                    (made.first, old.first, self.shape.first_state),
                    (made.second, old.second, self.shape.second_state),
                )
                for ours, theirs, state in states:
                    where = kept if state == "full" else slice(None)
                    ours[where] = theirs[where]
                both = self._chunks(mask & old.mask)
                made.utilities[both] = old.utilities[both]
            if growth is not None:
                made.growth = growth[number].bfloat16()
            self.rows[key] = made

    def scale_utilities(self, factor: float, table: int | None = None) -> None:
        """Multiplies utilities of one table, or of all."""
        for (own, _), row in self.rows.items():
            if table not in (None, own):
                continue
            row.growth = (row.growth.float() * factor).bfloat16()
            row.utilities = (row.utilities.float() * factor).bfloat16()

    def blocks(self, table: int, rows: int = 1 << 16) -> Iterator[ChunkedBlock]:
        """All rows of a table in the order of ids."""
        ids = sorted(row for own, row in self.rows if own == table)
        for first in range(0, len(ids), rows):
            yield self.read(table, torch.tensor(ids[first : first + rows]))

    def read(self, table: int, ids: Tensor) -> ChunkedBlock:
        """Rows as they are now."""
        found = [self.rows[table, row] for row in ids.tolist()]
        masks = torch.tensor([row.mask for row in found], dtype=torch.int64)
        live = (masks[:, None] >> torch.arange(self.shape.chunks)) & 1 == 1
        none = torch.zeros(0)

        def states(which: str, state: str) -> Tensor:
            if state == "none" or not found:
                return none
            stacked = torch.stack([getattr(row, which) for row in found])
            return stacked.view(-1) if state == "row" else stacked

        expanded = ExpandedRows(
            torch.stack([row.weight for row in found]),
            states("first", self.shape.first_state),
            states("second", self.shape.second_state),
        )
        growth = torch.stack([row.growth for row in found])
        utilities = torch.stack([row.utilities for row in found])[live]
        return compressed(self.shape, ids, masks, growth, utilities, expanded)

    def load(self, table: int, block: ChunkedBlock) -> None:
        """Takes rows as they are given."""
        expanded = block.expanded(self.shape)
        live = (block.masks[:, None] >> torch.arange(self.shape.chunks)) & 1 == 1
        utilities = torch.zeros(live.shape, dtype=torch.bfloat16)
        utilities[live] = block.utilities
        for number, row in enumerate(block.ids.tolist()):
            if not block.masks[number]:
                self.rows.pop((table, row), None)
                continue
            states = (
                part[number].clone().view(-1) if state != "none" else part
                for part, state in (
                    (expanded.first, self.shape.first_state),
                    (expanded.second, self.shape.second_state),
                )
            )
            self.rows[table, row] = TwinRow(
                int(block.masks[number]),
                block.growth[number].clone(),
                utilities[number],
                expanded.weight[number],
                *states,
            )

    def _begin(self, key: tuple[int, int], mask: int, utility: float) -> TwinRow:
        table, row = key
        shape = self.shape
        weight = start_values_twin(self.tables[table].start, torch.tensor([self.id_of(table, row)]))[0]
        weight[~self._columns(mask)] = 0
        numbers = {"none": 0, "row": 1, "full": shape.dim}
        states = (torch.zeros(numbers[state]) for state in (shape.first_state, shape.second_state))
        utilities = torch.zeros(shape.chunks)
        utilities[self._chunks(mask)] = utility
        zero = torch.zeros((), dtype=torch.bfloat16)
        return TwinRow(mask, zero, utilities.bfloat16(), weight, *states)

    def _chunks(self, mask: int) -> Tensor:
        return (torch.tensor(mask) >> torch.arange(self.shape.chunks)) & 1 == 1

    def _columns(self, mask: int) -> Tensor:
        return self.shape.live_columns(torch.tensor([mask]))[0]
