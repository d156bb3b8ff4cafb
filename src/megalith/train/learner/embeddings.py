"""The settings of a learner's embedding tables: how rows are updated, where they lie, what holds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import field_validator

from megalith.core.config import Config
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import TableSpec, check_tables
from megalith.core.store_spec import (
    AnyStore,
    DenseSpec,
    StoreSpec,
    TieredSpec,
    store_in_full,
)
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer, RowWiseAdaGrad
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.choose import DENSE_PART, choose_adaptive, choose_stores, is_whole
from megalith.embeddings.stores.dynamic.settings import sized_table
from megalith.embeddings.stores.settings import TieredMemory
from megalith.sharding.plan import ExchangeConfig, ShardingPlan

EVERY_TABLE = "*"


class EmbeddingsConfig(Config):
    """How the rows of all tables are updated, and what holds those of single ones."""

    optimizer: RowOptimizer = RowWiseAdaGrad(lr=0.02)
    """Of the rows of all tables; `kind` says which."""
    stores: dict[str, AnyStore] = {}
    """By the name of a table, what holds its rows, "*" being every table not named; all others are dense, or
    as `memory` or `adaptive` ask for."""
    log_evicted: bool = False
    """Whether ids of dynamic tables that lose their row are written to the run's evicted.jsonl."""

    @field_validator("stores", mode="before")
    @classmethod
    def _stores_in_full(cls, stores: object) -> object:
        if not isinstance(stores, dict):
            return stores
        return {table: store_in_full(store) for table, store in stores.items()}

    def with_stores(self, tables: Sequence[TableSpec]) -> list[TableSpec]:
        """The tables of a model with the stores that the recipe gives them, dynamic ones with their bounds.

        A name of no table is refused, and so is a table of raw ids without a dynamic store.
        """
        names = [table.name for table in tables]
        for name in self.stores:
            if name != EVERY_TABLE and name not in names:
                raise ConfigError(
                    f"embeddings.stores names '{name}', which is no table; {nearest(name, names)}"
                )
        stored = []
        for table in tables:
            store = self.stores.get(table.name, self.stores.get(EVERY_TABLE))
            with_store = table if store is None else table.model_copy(update={"store": store})
            stored.append(sized_table(with_store, self.optimizer))
        check_tables(stored)
        return stored


class ShardingConfig(Config):
    """How tables are cut over ranks under torchrun; of no effect in one process."""

    plan: Literal["auto"] | Path = "auto"
    """A file of `megalith plan`, or `auto` to plan for the ranks that there are, at every start."""
    exchange: ExchangeConfig | None = None
    """None takes what the plan says."""


class PlacedTables(NamedTuple):
    """Tables with what holds their rows, and the budgets of those that are not whole in memory."""

    tables: list[TableSpec]
    memory: TieredMemory | None
    adaptive: AdaptivePolicy | None = None


def place_tables(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    memory: TieredMemory | None,
    plan: ShardingPlan | None,
    adaptive: AdaptivePolicy | None = None,
) -> PlacedTables:
    """Where a recipe gives `memory`, tables that are not small are tiered; all of them share the budget.

    Under a plan they are what it says. Where a recipe gives `adaptive`, tables that are not small are that,
    with or without a plan.
    """
    if adaptive is not None:
        given = tables
        tables, adaptive = choose_adaptive(tables, [optimizer] * len(tables), adaptive)
        if memory is not None:
            tables = [
                table if before.store is not None else _over_tiers(table)
                for before, table in zip(given, tables, strict=True)
            ]
    tables, memory = _place_tiered(tables, optimizer, memory, plan)
    return PlacedTables(tables, memory, adaptive)


def _over_tiers(table: TableSpec) -> TableSpec:
    """An adaptive table whose live chunks may lie on disk; others as they are."""
    chunks = table.store_spec.chunks
    if chunks is None:
        return table
    return table.model_copy(update={"store": chunks.model_copy(update={"over": TieredSpec()})})


def _place_tiered(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    memory: TieredMemory | None,
    plan: ShardingPlan | None,
) -> tuple[list[TableSpec], TieredMemory | None]:
    chosen: Sequence[StoreSpec]
    if plan is not None:
        kinds = {placement.table: placement.store for placement in plan.placements}
        chosen = [TieredSpec() if kinds[table.name] == "tiered" else DenseSpec() for table in tables]
        behind_caches = [table.name for table in tables if kinds[table.name] == "tiered"]
        if behind_caches and memory is None:
            raise ConfigError(
                f"The plan keeps table '{behind_caches[0]}' on disk behind a cache; say how much memory "
                "caches may take, with memory.dram=4GiB, or regenerate the plan with `megalith plan`."
            )
    if memory is None:
        return list(tables), None
    world_size = 1 if plan is None else plan.world_size
    if plan is None:
        chosen = choose_stores(tables, [optimizer] * len(tables), memory.dram)
    placed = [
        table if table.store is not None else table.model_copy(update={"store": store})
        for table, store in zip(tables, chosen, strict=True)
    ]
    small = [
        table for table, given in zip(placed, tables, strict=True) if given.store is None and is_whole(table)
    ]
    dense = memory_of(small, [optimizer] * len(small)).total // world_size
    # A plan of one's own may keep more in memory: that is outside of the budget.
    return placed, memory.share(memory.dram - min(dense, int(memory.dram * DENSE_PART)))
