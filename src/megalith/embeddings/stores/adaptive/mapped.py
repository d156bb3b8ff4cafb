"""Tables of chunked rows beneath a map of ids: rows are given out and taken back, and ids are what counts.

The map writes into `raw_ids` which id has a row before the row is used. What depends on an id anywhere else
(start values, ties, rounding, the sketch) depends on the raw id here, so the row that it has shows nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.row_block import WEIGHT, PartSpec
from megalith.embeddings.stores.adaptive.tiers.tiered_chunks import TieredChunks
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.sketch import UNITS, CandidateSketch, CandidateTable
from megalith.ops.stores.start_values import StartValues

CANDIDATES = "candidates"
"""The name of the sketch among the states of a table."""


class MappedTable(NamedTuple):
    """What a store of chunks has to know of a table whose rows a map gives out."""

    start: StartValues
    """Of raw ids."""
    partitions: tuple[int, int]
    """[first, last) of the ids that are here: units of the sketch."""
    rows: int
    """That ids may have. What is behind them competes for nothing."""
    shared: int
    """The row behind them that is always whole: that of ids without one; -1 where there is none."""


class SharedRows:
    """The rows of a pool that are always whole, and where they lie."""

    def __init__(self, pool: ChunkedRows, mapped: list[MappedTable | None]) -> None:
        self._pool = pool
        self._rows = [-1 if own is None else own.shared for own in mapped]
        self._tables = [table for table, row in enumerate(self._rows) if row >= 0]
        self._slots = [0] * len(mapped)
        self._generation = -1

    def slots(self) -> list[int]:
        """By table; 0 where there is none, or it has not begun."""
        if self._tables and self._generation != self._pool.generation:
            lookups = torch.tensor([(table, at, at + 1) for at, table in enumerate(self._tables)])
            rows = torch.tensor([self._rows[table] for table in self._tables])
            self._generation = self._pool.generation
            found = self._pool.resolve(lookups, rows, trains=False).slots.clamp(min=0).tolist()
            for table, slot in zip(self._tables, found, strict=True):
                self._slots[table] = slot
        return self._slots

    def count(self) -> list[int]:
        """By table, how many there are."""
        return [int(slot > 0) for slot in self.slots()]


def drop_rows(
    pool: ChunkedRows | TieredChunks, sketch: CandidateSketch, table: int, rows: Tensor, ids: Tensor
) -> bool:
    """Takes the rows of ids back with all that is known of them, int64 each; whether there were any."""
    raw_ids = pool.raw_ids[table]
    assert raw_ids is not None
    # An id that came and went at once has never begun.
    rows = rows[raw_ids[rows] == ids]
    if len(rows):
        sketch.remove(table, rows)
        pool.rewrite(table, rows, torch.zeros_like(rows))
    return len(rows) > 0


def candidate_table(whole: CandidateTable, window: TableWindow, mapped: MappedTable | None) -> CandidateTable:
    """The part of a table's sketch for some of its rows: whole units of it."""
    if mapped is not None:
        return CandidateTable(whole.rows, whole.bytes, mapped.partitions, mapped_rows=mapped.rows)
    (first, last), unit = window.rows, whole.unit_rows
    # Units behind the last row are with it, so that every unit is somewhere.
    units = first // unit, UNITS if last == window.table.rows else last // unit
    return CandidateTable(whole.rows, whole.bytes, units, first_row=first)


def candidate_units(whole: CandidateTable, shards: tuple[TableShard, ...], *, is_mapped: bool) -> TableState:
    """The sketch of a table as a checkpoint sees it, of which this process has the units in `shards`."""
    parts = {WEIGHT: PartSpec(torch.uint8, "element")}
    width = whole.raw_unit_bytes if is_mapped else whole.unit_bytes
    return TableState(UNITS, width, parts, shards, optional=True)
