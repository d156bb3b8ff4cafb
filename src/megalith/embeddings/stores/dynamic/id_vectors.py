"""Ids of a dynamic table with their vectors and scores, in and out: for other systems, or another table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.embeddings.row_block import WEIGHT, PartSpec, RowBlock
from megalith.embeddings.stores.dynamic.shard import ID_PARTS, DynamicShard, whole_columns
from megalith.embeddings.stores.dynamic.store import DynamicStore


def export_ids(store: DynamicStore, table: int, max_bytes: int) -> Iterator[RowBlock]:
    """Blocks of at most about `max_bytes`, ids rising: `weight`, and `score` in uses as they count. Columns
    of chunks that do not live are zeros."""
    unit = _unit(store, table)
    for block in store.shard(table).blocks(max_bytes):
        weight = whole_columns(block.parts[WEIGHT], store.tables[table].spec.dim)
        parts = {WEIGHT: weight, "score": block.parts["score"] / unit}
        yield RowBlock(block.ids, (0, weight.shape[1]), parts)


def import_ids(store: DynamicStore, table: int, blocks: Iterable[RowBlock]) -> int:
    """Takes those ids whose partitions are here, with their vectors; how many of them have a row afterwards.

    What a block lacks is 0 in optimizer state, one use as the score, and the last batch as the last use.
    """
    store.begin()
    store.chunks.settle(store.ids)
    shard = DynamicShard(store, table)
    given: list[Tensor] = []
    for block in blocks:
        whole = _whole(store, shard, table, block)
        shard.load(whole)
        ids = torch.as_tensor(whole.ids)
        given.append(ids[store.owns(ids)])
    ids = torch.cat([torch.empty(0, dtype=torch.int64), *given]).sort().values
    if bool((ids.diff() == 0).any()):
        raise _twice(store, table, int(ids[:-1][ids.diff() == 0][0]))
    lookups = torch.tensor([(table, 0, len(ids))])
    rows = store.ids.resolve(lookups, ids, store.ids.batch, trains=False).rows
    return int((rows >= 0).sum())


def _unit(store: DynamicStore, table: int) -> float:
    """What one use adds to a score now."""
    return store.ids.tables[table].eviction.score_clock(store.ids.batch).weight


def _whole(store: DynamicStore, shard: DynamicShard, table: int, block: RowBlock) -> RowBlock:
    """A block with all parts of a row, ids rising."""
    name, (_, dim) = store.names[table], shard.columns
    ids = torch.as_tensor(block.ids, dtype=torch.int64)
    parts: dict[str, Any] = dict(block.parts)
    if WEIGHT not in parts or tuple(torch.as_tensor(parts[WEIGHT]).shape) != (len(ids), dim):
        raise DataError(
            f"Ids imported into table '{name}' need a `weight` of {dim} columns for each; add it."
        )
    ids, order = ids.sort()
    if bool((ids.diff() == 0).any()):
        raise _twice(store, table, int(ids[:-1][ids.diff() == 0][0]))
    scores = torch.as_tensor(parts.get("score", torch.ones(len(ids))), dtype=torch.float32)
    # `load` takes scores as a checkpoint has them.
    parts["score"] = scores * _unit(store, table) / store.score_factors[table]
    # Another run's batches may be ahead of this one's: nothing was used in the future.
    latest = max(1, store.ids.batch)
    parts["last"] = torch.as_tensor(parts.get("last", torch.full((len(ids),), latest))).clamp(1, latest)
    parts.setdefault("time", torch.full((len(ids),), store.now or 0))
    whole = {
        part: _rows(parts.get(part), spec, len(ids), dim)[order]
        for part, spec in {**shard.inner.specs, **ID_PARTS}.items()
    }
    return RowBlock(ids, shard.columns, whole)


def _twice(store: DynamicStore, table: int, id_: int) -> DataError:
    name = store.tables[table].spec.name
    return DataError(f"Id {id_} is imported into table '{name}' twice; leave one out.")


def _rows(part: Any, spec: PartSpec, rows: int, dim: int) -> Tensor:
    shape = (rows, dim) if spec.per == "element" else (rows,)
    return (
        torch.zeros(shape, dtype=spec.dtype)
        if part is None
        else torch.as_tensor(part).to(spec.dtype).view(shape)
    )
