"""`make_stores`: the stores of the tables of a collection, and how they share memory and disk."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from megalith.core.errors import ConfigError, storage_errors
from megalith.core.schema import MAX_DENSE_ROWS, too_many_rows
from megalith.core.units import format_bytes
from megalith.embeddings.memory import check_fits, taking_memory
from megalith.embeddings.stores.adaptive.budget import AdaptiveBudget
from megalith.embeddings.stores.adaptive.store import AdaptiveStore, chunk_shape
from megalith.embeddings.stores.base import RowStore, StoredTable
from megalith.embeddings.stores.choose import is_whole
from megalith.embeddings.stores.dense import DenseStore
from megalith.embeddings.stores.dynamic.settings import inner_table, mapped_table, partitions_of
from megalith.embeddings.stores.dynamic.store import DynamicStore
from megalith.embeddings.stores.settings import TieredMemory
from megalith.embeddings.stores.tiered import LEAST_ROWS, RowShape, TieredStore
from megalith.ops.chunks.blocks import ChunkShape

_SMALL_PART = 1 / 64
"""Rows of one shape that take less than this of the budget are all kept in memory."""


def make_stores(
    tables: Sequence[StoredTable],
    seed: int,
    device: torch.device | str,
    memory: TieredMemory | None,
    budget: AdaptiveBudget | None,
) -> list[RowStore]:
    """The store of each table; tables whose rows have one shape share a tiered or an adaptive one, dynamic
    ones a map."""
    dense: list[StoredTable] = []
    tiered: dict[str, list[StoredTable]] = {}
    adaptive: dict[tuple[ChunkShape, str, bool], list[StoredTable]] = {}
    dynamic: dict[str, list[StoredTable]] = {}
    for table in tables:
        if table.spec.is_dynamic:
            dynamic.setdefault("-dynamic-{}-{}".format(*partitions_of(table.window)), []).append(table)
    under_dynamic = {table.spec.name: key for key, some in dynamic.items() for table in some}
    for table in (inner_table(table) if table.spec.is_dynamic else table for table in tables):
        adaptive_spec = table.spec.store_spec.chunks
        if adaptive_spec is not None:
            assert budget is not None
            shape = chunk_shape(table, adaptive_spec, budget.policy.chunk)
            on_disk = adaptive_spec.disk is not None
            if on_disk:
                _check_memory(table, "adaptive over tiers", memory)
            adaptive.setdefault((shape, under_dynamic.get(table.spec.name, ""), on_disk), []).append(table)
        elif _kind(table, memory) == "dense":
            dense.append(table)
        else:
            # Row numbers of a dynamic table are nobody's ids: they have a pool of their own.
            tiered.setdefault(RowShape(table).key + under_dynamic.get(table.spec.name, ""), []).append(table)
    for table in dense:
        # Before memory is asked for: rows beyond these would be taken for others.
        if table.spec.rows > MAX_DENSE_ROWS:
            raise ConfigError(too_many_rows(table.window.table.name, table.spec.rows))
    specs, optimizers = [table.spec for table in dense], [table.optimizer for table in dense]
    if torch.device(device).type == "cpu":
        check_fits(specs, optimizers)
    elif tiered or adaptive or dynamic:
        raise ConfigError(
            "Tiered, adaptive and dynamic tables are kept in this machine's memory; leave `device` at cpu."
        )
    with taking_memory(specs, optimizers):
        stores: list[RowStore] = [
            DenseStore(table, seed, device, begins=table.spec.name not in under_dynamic) for table in dense
        ]
    needs = {key: _CacheNeed.of(RowShape(some[0]).row_bytes, some) for key, some in tiered.items()} | {
        _chunks_key(chunks, key): _CacheNeed.of(chunks.row_bytes(chunks.chunks), some)
        for (chunks, key, on_disk), some in adaptive.items()
        if on_disk
    }
    parents: list[Path] = []
    drams: dict[str, int] = {}
    if needs:
        assert memory is not None
        assert memory.path is not None
        with storage_errors(memory.path):
            parents = _own_folders(memory.path, needs)
        drams = _budget(needs, memory.dram)
        for key, some in tiered.items():
            stores.append(TieredStore(some, memory.share(drams[key], key), seed, parents))
    outer = {table.spec.name: table for table in tables}
    for (chunks, key, on_disk), of_one_shape in adaptive.items():
        assert budget is not None
        mapped = [mapped_table(outer[table.spec.name], seed) for table in of_one_shape if key]
        name, own_memory = _chunks_key(chunks, key), None
        if on_disk:
            assert memory is not None
            own_memory = memory.share(drams[name], name)
        stores.append(AdaptiveStore(of_one_shape, chunks, budget, seed, mapped, own_memory, parents))
    if budget is not None:
        budget.check()
    if not dynamic:
        return stores
    inner: dict[str, list[RowStore]] = {key: [] for key in dynamic}
    others: list[RowStore] = []
    for store in stores:
        own = under_dynamic.get(store.tables[0].spec.name)
        (others if own is None else inner[own]).append(store)
    return [*others, *(DynamicStore(some, inner[key], seed) for key, some in dynamic.items())]


def _own_folders(path: Path, shapes: Container[str]) -> list[Path]:
    """Of a folder and those above it, the ones to remove when they are empty: whoever made one keeps it.

    They are not there yet, or hold nothing but what an earlier process left of rows of these shapes.
    """
    if path.is_dir():
        names = [each.name for each in path.iterdir()]
        return [path] if names and all(name in shapes for name in names) else []
    return [each for each in (path, *path.parents) if not each.exists()]


def _kind(table: StoredTable, memory: TieredMemory | None) -> str:
    if is_whole(table.spec):
        return "dense"
    assert table.spec.store is not None
    kind = table.spec.store if isinstance(table.spec.store, str) else table.spec.store.kind
    _check_memory(table, kind, memory)
    return kind


def _check_memory(table: StoredTable, kind: str, memory: TieredMemory | None) -> None:
    if memory is None or memory.path is None:
        raise ConfigError(
            f"Table '{table.spec.name}' is {kind}: say how much memory it may take and where its rows "
            "lie, with memory=TieredMemory(dram='4GiB', path='rows')."
        )


def _chunks_key(shape: ChunkShape, under: str) -> str:
    """A name for rows in chunks that tells shapes apart, and that can be one of a folder."""
    dtype = str(shape.dtype).removeprefix("torch.")
    return f"{dtype}-{shape.dim}-by-{shape.width}-{shape.first_state}-{shape.second_state}{under}"


class _CacheNeed(NamedTuple):
    """What a shape of rows wants of the budget for caches."""

    row_bytes: int
    """Of a whole row with its state."""
    total: int

    @staticmethod
    def of(row_bytes: int, tables: Sequence[StoredTable]) -> _CacheNeed:
        return _CacheNeed(row_bytes, row_bytes * sum(table.spec.rows for table in tables))


def _budget(shapes: Mapping[str, _CacheNeed], dram: int) -> dict[str, int]:
    """The bytes of the budget that each shape of rows gets.

    Every miss costs one read whatever the row's length, so shapes that need little are whole in memory; the
    others share what is left in proportion to their bytes, each with room for some rows at least.
    """
    needs = {shape: need.total for shape, need in shapes.items()}
    least = {}
    for shape, need in shapes.items():
        small = need.total <= _SMALL_PART * dram
        least[shape] = need.total if small else min(need.total, LEAST_ROWS * need.row_bytes)
    left = dram - sum(least.values())
    if left < 0:
        raise ConfigError(
            f"memory.dram is {format_bytes(dram)}, and a cache of {LEAST_ROWS} rows of each shape takes "
            f"{format_bytes(sum(least.values()))}; give it that, or more."
        )
    wanted = max(1, sum(needs.values()) - sum(least.values()))
    return {
        shape: least[shape] + min(need - least[shape], left * (need - least[shape]) // wanted)
        for shape, need in needs.items()
    }
