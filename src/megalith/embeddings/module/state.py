"""Rows of tables as tensors in torch's own state dictionaries, whatever store holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.row_block import GROWTH, UTILITY, WEIGHT, RowBlock, part_specs
from megalith.embeddings.table_state import TableShard, TableState

if TYPE_CHECKING:
    from megalith.embeddings.collection import EmbeddingCollection

LIVE = "live"
"""How many chunks each row has, of tables that keep only some."""
_BLOCK_BYTES = 64 << 20


def collection_state(collection: EmbeddingCollection) -> dict[str, Any]:
    """Weights, optimizer state and the step count of a collection, by table name.

    Of tables that are not whole in memory it holds the rows that were trained, and `ids` says which; of
    adaptive ones also how many chunks each has. What else their stores know is in `others`.
    """
    rows = {table.name: _rows_of(collection, table) for table in collection.tables}
    kinds = zip(collection.tables, collection.optimizers, strict=True)
    return {
        "num_steps": collection.num_steps,
        "optimizers": {table.name: optimizer.kind for table, optimizer in kinds},
        "weights": {name: parts.pop(WEIGHT) for name, (_, parts) in rows.items()},
        "states": {name: parts for name, (_, parts) in rows.items()},
        "ids": {name: ids for name, (ids, _) in rows.items() if ids is not None},
        "others": {name: all_parts(state) for name, state in _other_states(collection).items()},
        "policy": collection.policy_state(),
    }


def load_collection_state(collection: EmbeddingCollection, state: dict[str, Any]) -> None:
    """Takes what `collection_state` gave, of the same tables and optimizers in any stores.

    All of it is checked before any of it is taken.
    """
    check_state(collection.tables, collection.optimizers, state)
    collection.num_steps = int(state["num_steps"])
    for name, own in _other_states(collection).items():
        load_all_parts(own, state.get("others", {}).get(name))
    for table in collection.tables:
        name, ids = table.name, state.get("ids", {}).get(table.name)
        parts = {WEIGHT: state["weights"][name], **state["states"][name]}
        load_rows(collection.shard(name), table, ids, parts)
    collection.load_policy_state(state.get("policy") or collection.policy_state())


def check_state(
    tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer], state: Mapping[str, Any]
) -> None:
    """Refuses what another collection saved: the sentence names the table and the part."""
    missing = {"num_steps", "weights", "states"} - set(state)
    if missing:
        raise ConfigError(
            f"The state has no '{min(missing)}'; load what state_dict() of an EmbeddingCollection gave."
        )
    names, saved = {table.name for table in tables}, set(state["weights"])
    if names != saved:
        raise ConfigError(
            f"The saved tables are {_listed(saved)} and those of this collection {_listed(names)}; make it "
            "with the tables that were saved."
        )
    for table, optimizer in zip(tables, optimizers, strict=True):
        _check_table(table, optimizer, state)


def _check_table(table: TableSpec, optimizer: RowOptimizer, state: Mapping[str, Any]) -> None:
    name = table.name
    ids = state.get("ids", {}).get(name)
    weight, parts = state["weights"][name], state["states"][name]
    rows, dim = weight.shape
    if dim != table.dim or (ids is None and rows != table.rows and not table.is_dynamic):
        raise ConfigError(
            f"Table '{name}' has {table.rows:,} rows of {table.dim} columns, and the saved '{WEIGHT}' has "
            f"{rows:,} of {dim}; make the table with the rows and dim that were saved."
        )
    kind = state.get("optimizers", {}).get(name, optimizer.kind)
    if kind != optimizer.kind:
        raise ConfigError(
            f"Table '{name}' was saved with the optimizer {kind}, and this one has {optimizer.kind}, whose "
            f"state is another{_named(parts)}; make the collection with the optimizer that was saved."
        )
    for part, spec in part_specs(table, optimizer).items():
        given = weight if part == WEIGHT else parts.get(part)
        shape = (rows, table.dim) if spec.per == "element" else (rows,)
        if given is None or tuple(given.shape) != shape:
            found = "lacks it" if given is None else f"has {list(given.shape)}"
            raise ConfigError(
                f"The optimizer {optimizer.kind} of table '{name}' keeps '{part}' as {list(shape)}, and the "
                f"saved state {found}; make the collection with the optimizer that was saved."
            )


def _named(parts: Mapping[str, Tensor]) -> str:
    kept = [f"'{part}' {list(parts[part].shape)}" for part in ("first", "second") if part in parts]
    return f" (saved: {', '.join(kept)})" if kept else ""


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)[:8]) + (", ..." if len(names) > 8 else "")


def _rows_of(collection: EmbeddingCollection, table: TableSpec) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The ids of a table's trained rows, None for all, and their parts."""
    if collection.is_whole(table.name):
        return None, {WEIGHT: collection.weight(table.name), **collection.state(table.name)}
    return stored_rows(collection.shard(table.name), table)


def _other_states(collection: EmbeddingCollection) -> dict[str, TableState]:
    names = {table.name for table in collection.tables}
    return {name: state for name, state in collection.table_states().items() if name not in names}


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
