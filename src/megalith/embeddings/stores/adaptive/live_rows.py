"""Rows of which the first chunks live: whole, as a pool has them, and in blocks that travel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.embeddings.row_block import GROWTH, PART_NAMES, UTILITY, WEIGHT, RowBlock, Taken
from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape, ExpandedRows, compressed


@dataclass
class WholeRows:
    """Rows with all their columns, of which the first chunks live."""

    ids: Tensor
    live: Tensor
    """int64 [rows]: how many chunks."""
    growth: Tensor
    utilities: Tensor
    """[rows, chunks]"""
    parts: ExpandedRows

    def block(self, kept: Tensor, shape: ChunkShape) -> ChunkedBlock:
        """Some of them as a pool takes them."""
        live = self.live[kept]
        masks = torch.tensor([shape.first_chunks(count) for count in range(shape.chunks + 1)])[live]
        utilities = self.utilities[kept][torch.arange(shape.chunks) < live[:, None]]
        rows = ExpandedRows(*(part[kept] if part.numel() else part for part in self.parts))
        return compressed(shape, self.ids[kept], masks, self.growth[kept], utilities, rows)


def lay_over(rows: WholeRows, taken: Taken, block: RowBlock, first_row: int, shape: ChunkShape) -> None:
    """Puts what was taken of a block over rows."""
    for name, target in zip(PART_NAMES, rows.parts, strict=True):
        if name in taken.parts:
            values, columns = taken.parts[name]
            (target if columns is None else target[:, columns]).copy_(values)
    columns = taken.parts[WEIGHT].columns if WEIGHT in taken.parts else None
    if columns is not None:
        rows.live.clamp_(min=-(-columns.stop // shape.width))
    if UTILITY in block.parts:
        # A block of chunks is one of whole rows.
        begin = int(torch.searchsorted(torch.as_tensor(block.ids), rows.ids[0] + first_row))
        own = slice(begin, begin + len(rows.ids))
        utilities = block.parts[UTILITY][own, :]
        rows.utilities[:, : utilities.shape[1]] = utilities
        rows.growth.copy_(block.parts[GROWTH][own])


def row_blocks(block: ChunkedBlock, shape: ChunkShape, first_row: int) -> Iterator[RowBlock]:
    """Rows of a pool as blocks of those with equally many chunks."""
    live = live_chunks(block.masks, shape)
    rows = block.expanded(shape)
    utilities = torch.zeros(len(live), shape.chunks, dtype=torch.bfloat16)
    utilities[torch.arange(shape.chunks) < live[:, None]] = block.utilities
    for count in live.unique().tolist():
        chosen = (live == count).nonzero().view(-1)
        columns = count * shape.width
        parts = {
            name: part[chosen][:, :columns].contiguous() if part.dim() == 2 else part[chosen]
            for name, part in zip(PART_NAMES, rows, strict=True)
            if part.numel()
        }
        parts |= {UTILITY: utilities[chosen, :count].contiguous(), GROWTH: block.growth[chosen]}
        yield RowBlock(block.ids[chosen] + first_row, (0, columns), parts)


def live_chunks(masks: Tensor, shape: ChunkShape) -> Tensor:
    """How many chunks live, of masks; always the first ones."""
    live = ((masks[:, None] >> torch.arange(shape.chunks)) & 1).sum(dim=1)
    first = torch.tensor([shape.first_chunks(count) for count in range(shape.chunks + 1)])
    if not torch.equal(first[live], masks):
        raise ValueError("a row of an adaptive table lacks a chunk before one that lives")
    return live


def states_of(shape: ChunkShape) -> tuple[str, str]:
    """What the optimizer keeps of a row, twice."""
    return shape.first_state, shape.second_state
