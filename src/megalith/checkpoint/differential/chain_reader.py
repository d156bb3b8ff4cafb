"""Rows of a table out of a chain of checkpoints, each from the newest one that has it.

Of tables whose rows are whole and never leave, the whole checkpoint is loaded as it lies and changed rows are
laid over, newest first, so that each is decoded and written once. Of all others, rows of older checkpoints
that a newer one has or deleted are left out before they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megalith.checkpoint.differential.row_codec import QuantisedPart
from megalith.checkpoint.manifest import TableRecord
from megalith.embeddings.row_block import RowBlock

ReadBlock = tuple[RowBlock, bool]
"""A block, and whether its ids were deleted."""


class SavedTable(NamedTuple):
    """A table as one checkpoint of a chain has it."""

    record: TableRecord
    blocks: Callable[[], Iterator[ReadBlock]]


def leaves_rows(tables: Sequence[SavedTable]) -> bool:
    """Whether rows of the table come and go, or are of unequal length."""
    return any(table.record.is_raw or table.record.chunk is not None for table in tables)


def newest_rows(tables: Sequence[SavedTable]) -> Iterator[RowBlock]:
    """Every row once, as the first of the checkpoints has it that has it at all; deleted ones not."""
    seen = _SortedIds()
    for table in tables:
        blocks = list(table.blocks())
        for block, is_deleted in blocks:
            if not is_deleted:
                new = seen.lacks(torch.as_tensor(block.ids))
                if bool(new.all()):
                    yield block
                elif bool(new.any()):
                    yield chosen_rows(block, new)
        seen.add(torch.as_tensor(block.ids) for block, _ in blocks)


def changed_rows(deltas: Sequence[SavedTable]) -> Iterator[RowBlock]:
    """What deltas change of a table whose rows never leave, in an order in which it can be laid over."""
    if not deltas:
        return
    cuts = {frozenset(block.columns for block in table.record.blocks) for table in deltas}
    cuts.discard(frozenset())
    if len(cuts) > 1:
        # Columns were cut anew: a newer row may have only some that an older one has. Oldest first.
        for table in reversed(deltas):
            yield from (block for block, _ in table.blocks())
        return
    columns: frozenset[tuple[int, int]] = next(iter(cuts), frozenset())
    seen = {own: torch.zeros(deltas[0].record.rows, dtype=torch.bool) for own in columns}
    for table in deltas:
        for block, _ in table.blocks():
            ids, own = torch.as_tensor(block.ids), seen[block.columns]
            new = ~own[ids]
            own[ids] = True
            if bool(new.all()):
                yield block
            elif bool(new.any()):
                yield chosen_rows(block, new)


def chosen_rows(block: RowBlock, chosen: Tensor) -> RowBlock:
    """Some rows of a block; parts are read when they are sliced."""
    positions = chosen.nonzero().view(-1)
    parts = {name: _ChosenPart(part, positions) for name, part in block.parts.items()}
    return RowBlock(torch.as_tensor(block.ids)[positions], block.columns, parts)


class _ChosenPart:
    """Some rows of a part; of the file only what lies between the first and the last of them is read."""

    def __init__(self, part: Any, positions: Tensor) -> None:
        self._part, self._positions = part, positions

    def __getitem__(self, where: Any) -> Tensor:
        rows, *columns = where if isinstance(where, tuple) else (where,)
        positions = self._positions[rows]
        if isinstance(self._part, QuantisedPart):
            return self._part.chosen(positions, *columns or (slice(None),))
        first, last = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        content: Tensor = self._part[(slice(first, last), *columns)] if columns else self._part[first:last]
        return content[positions - first]


class _SortedIds:
    """Ids of any size that were seen."""

    def __init__(self) -> None:
        self._ids = torch.empty(0, dtype=torch.int64)

    def lacks(self, ids: Tensor) -> Tensor:
        """Which of some were not."""
        if not len(self._ids):
            return torch.ones(len(ids), dtype=torch.bool)
        at = torch.searchsorted(self._ids, ids).clamp(max=len(self._ids) - 1)
        return self._ids[at] != ids

    def add(self, ids: Iterator[Tensor]) -> None:
        """These are seen from now on."""
        self._ids = torch.cat([self._ids, *ids]).unique()
