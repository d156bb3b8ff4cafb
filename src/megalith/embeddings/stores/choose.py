"""Which tables are worth a tiered or an adaptive store, where memory is limited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.core.store_spec import AdaptiveSpec, DenseSpec, StoreSpec, TieredSpec
from megalith.core.units import format_bytes
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.peak import peak_bytes
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy

DENSE_PART = 1 / 16
"""Of the budget, for all tables together that stay in memory whole."""


def choose_stores(
    tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer], dram: int
) -> list[StoreSpec]:
    """The store of each table under a budget: the smallest ones are dense, up to a sixteenth of it.

    Their rows would stay in a cache anyway, and a dense table has nothing to look up there.
    """
    sizes = [
        memory_of([table], [optimizer]).total for table, optimizer in zip(tables, optimizers, strict=True)
    ]
    chosen: list[StoreSpec] = [TieredSpec()] * len(tables)
    left = dram * DENSE_PART
    for number in sorted(range(len(tables)), key=lambda number: (sizes[number], number)):
        left -= sizes[number]
        if left < 0:
            break
        chosen[number] = DenseSpec()
    return chosen


def choose_adaptive(
    tables: Sequence[TableSpec], optimizers: Sequence[RowOptimizer], policy: AdaptivePolicy
) -> tuple[list[TableSpec], AdaptivePolicy]:
    """The tables with a store for those that have none, and what is left of the budget for adaptive ones.

    Where no table is named adaptive, all without a store are, but for the smallest: those of few rows, and
    those that together take little of the budget. These stay dense, and what they take is charged.
    """
    if any(is_adaptive(table) for table in tables):
        return list(tables), policy
    sizes = [
        memory_of([table], [optimizer]).total for table, optimizer in zip(tables, optimizers, strict=True)
    ]
    governed = [number for number, table in enumerate(tables) if table.store is None]
    dense_bytes = sum(sizes[number] for number in governed)
    budget = policy.bytes_of(dense_bytes)
    chosen, small, exempt = list(tables), policy.exempt_share * budget, 0
    for number in sorted(governed, key=lambda number: (sizes[number], number)):
        small -= sizes[number]
        is_exempt = small >= 0 or tables[number].rows <= policy.exempt_rows
        exempt += sizes[number] if is_exempt else 0
        store = DenseSpec() if is_exempt else AdaptiveSpec()
        chosen[number] = tables[number].model_copy(update={"store": store})
    left = budget - exempt
    if left < dense_bytes / 4096:
        raise ConfigError(
            f"adaptive leaves {format_bytes(budget)} for all tables, and those that stay whole take "
            f"{format_bytes(exempt)} of it; give more, or lower adaptive.exempt_rows."
        )
    return chosen, policy.model_copy(update={"ratio": None, "budget": left})


class AdaptiveBytes(NamedTuple):
    """What adaptive tables take."""

    budget: int
    """At most, with all bookkeeping, when the schedule has come to its end."""
    dense: int
    """As dense tables, with their state."""
    peak: int
    """At most on the way there, from the first step on."""

    @property
    def share(self) -> float:
        """Of the bytes as dense ones."""
        return self.budget / max(1, self.dense)


def adaptive_bytes(
    tables: Sequence[TableSpec],
    optimizer: RowOptimizer,
    policy: AdaptivePolicy | None,
    lookups: Mapping[str, int | None] | None = None,
) -> AdaptiveBytes:
    """What the adaptive ones of some tables may take together, on all ranks.

    `lookups` are those of a step in each table; None where nothing is trained, and no peak is to come.
    """
    own = [table for table in tables if is_adaptive(table)]
    dense = memory_of(own, [optimizer] * len(own)).total
    if policy is None:
        return AdaptiveBytes(dense, dense, dense)
    final = min(policy.bytes_of(dense), dense)
    if lookups is None or not own:
        return AdaptiveBytes(final, dense, final)
    return AdaptiveBytes(final, dense, max(final, peak_bytes(own, optimizer, policy, lookups)))


def is_adaptive(table: TableSpec) -> bool:
    """Whether only some chunks of a table's rows are stored, also beneath a map of ids."""
    return table.store_spec.chunks is not None


def is_behind_cache(table: TableSpec) -> bool:
    """Whether the rows of a table are on disk, and some of them in memory."""
    return isinstance(table.store, TieredSpec)


def is_whole(table: TableSpec) -> bool:
    """Whether every row of a table is in memory."""
    return table.store is None or isinstance(table.store, DenseSpec)
