"""Rows of tables as tensors in torch's own state dictionaries, whatever store holds them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from megalith.core.schema import TableSpec
from megalith.embeddings.row_block import GROWTH, UTILITY, WEIGHT, RowBlock
from megalith.embeddings.table_state import TableShard, TableState

LIVE = "live"
"""How many chunks each row has, of tables that keep only some."""
_BLOCK_BYTES = 64 << 20


def stored_rows(shard: TableShard, table: TableSpec) -> tuple[Tensor, dict[str, Tensor]]:
    """The ids of a table's rows that a store has, and their parts, with all columns."""
    blocks = list(shard.blocks(_BLOCK_BYTES))
    ids = torch.cat([torch.empty(0, dtype=torch.int64), *(torch.as_tensor(block.ids) for block in blocks)])
    order = ids.argsort()
    widths = {name: table.dim if spec.per == "element" else 0 for name, spec in shard.specs.items()}
    dtypes = {name: spec.dtype for name, spec in shard.specs.items()}
    if shard.chunk is not None:
        widths |= {UTILITY: table.dim // shard.chunk, GROWTH: 0}
        dtypes |= {UTILITY: torch.bfloat16, GROWTH: torch.bfloat16}
    parts = {}
    for name, width in widths.items():
        none = torch.empty(0, *((width,) if width else ()), dtype=dtypes[name])
        found = [block.parts[name] for block in blocks]
        padded = (F.pad(each, (0, width - each.shape[1])) if width else each for each in found)
        parts[name] = torch.cat([none, *padded])[order]
    if shard.chunk is not None:
        counts = [torch.full((len(block.ids),), block.columns[1] // shard.chunk) for block in blocks]
        parts[LIVE] = torch.cat([torch.empty(0, dtype=torch.int64), *counts])[order]
    return ids[order], parts


def load_rows(shard: TableShard, table: TableSpec, ids: Tensor | None, parts: dict[str, Tensor]) -> None:
    """Gives a store the rows that `stored_rows` gave of any; without `ids` all rows, in their order."""
    if LIVE not in parts:
        if ids is not None or shard.sparse:
            shard.reset()
        shard.load(RowBlock(range(table.rows) if ids is None else ids, (0, table.dim), parts))
        return
    assert ids is not None
    shard.clear()
    live, chunk = parts[LIVE], table.dim // parts[UTILITY].shape[1]
    columns_of = {name: 1 if name == UTILITY else chunk for name in (WEIGHT, "first", "second", UTILITY)}
    for count in live.unique().tolist():
        rows = live == count
        own = {
            name: part[rows][:, : count * columns_of[name]] if part.dim() == 2 else part[rows]
            for name, part in parts.items()
            if name != LIVE
        }
        shard.load(RowBlock(ids[rows], (0, count * chunk), own))


def all_parts(state: TableState) -> dict[str, Tensor]:
    """The parts of a table that this process has whole; copies."""
    (shard,) = state.shards
    blocks = list(shard.blocks(_BLOCK_BYTES))
    return {name: torch.cat([block.parts[name] for block in blocks]) for name in shard.specs}


def load_all_parts(state: TableState, parts: dict[str, Tensor] | None) -> None:
    """Puts back what `all_parts` gave; it is cleared where there is nothing, or of another size."""
    (shard,) = state.shards
    shard.clear()
    if parts is not None and parts[WEIGHT].shape == (state.rows, state.dim):
        shard.load(RowBlock(range(state.rows), (0, state.dim), parts))
