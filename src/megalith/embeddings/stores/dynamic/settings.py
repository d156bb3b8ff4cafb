"""A dynamic table as its parts are told of it: its map of ids, its bound, its rows in the inner store.

row 0 .. bound - 1    of the ids that have one
row bound             of all ids without one: shared and trained, or zeros
row bound + 1         of the padding id, where ids without a row do not read zeros as well

A part of a table has the rows of its partitions instead of `bound`, and the shared row as every part has it:
see `sharding/runtime/unknown_rows.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.core.store_spec import AdaptiveSpec, DynamicSpec, partitions_between
from megalith.core.units import format_bytes
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.mapped import MappedTable
from megalith.embeddings.stores.base import StoredTable
from megalith.embeddings.stores.tiered import RowShape
from megalith.ops.ids.policies import MOST_ROWS, PARTITIONS, id_table_spec

UNKNOWN_ID = 0
"""The row that ids without one share begins like this id of the table `<name>.unknown`."""


class DynamicRows(NamedTuple):
    """What the rows of the inner store stand for."""

    bound: int
    unknown: int
    padding: int
    """-1 where nothing reads zeros."""

    @property
    def total(self) -> int:
        """Rows of the inner store."""
        return max(self.unknown, self.padding) + 1


def dynamic_store(table: TableSpec) -> DynamicSpec:
    """The settings of a dynamic table."""
    assert isinstance(table.store, DynamicSpec)
    return table.store


def dynamic_rows(table: TableSpec, *, is_part: bool = False) -> DynamicRows:
    """What the rows under a dynamic table, or a part of one, stand for."""
    bound = table.rows
    if dynamic_store(table).unknown == "zeros":
        return DynamicRows(bound, bound, bound)
    # Gradients of the shared row of a part are taken out before its step: their ids become padding.
    has_padding = is_part or table.padding_index is not None
    return DynamicRows(bound, bound, bound + 1 if has_padding else -1)


def is_part(window: TableWindow) -> bool:
    """Whether other processes have partitions of the table too."""
    return window.rows != (0, window.table.rows)


def partitions_of(window: TableWindow) -> tuple[int, int]:
    """[first, last) of the partitions of ids that a table or a part of one has."""
    partitions = partitions_between(window.table.rows, window.rows)
    assert partitions is not None
    return partitions


def inner_spec(table: TableSpec, *, is_part: bool = False) -> TableSpec:
    """The table of row numbers that lies under a dynamic one; any other as it is."""
    if not table.is_dynamic:
        return table
    rows = dynamic_rows(table, is_part=is_part)
    return table.model_copy(
        update={
            "rows": rows.total,
            "store": dynamic_store(table).over,
            "padding_index": None if rows.padding < 0 else rows.padding,
        }
    )


def inner_table(table: StoredTable) -> StoredTable:
    """The same as a store is given it."""
    spec = inner_spec(table.spec, is_part=is_part(table.window))
    named = spec.model_copy(update={"name": table.window.table.name})
    return StoredTable(spec, TableWindow.whole(named), table.optimizer)


def mapped_table(table: StoredTable, seed: int) -> MappedTable:
    """What chunks underneath a dynamic table are told of it."""
    rows = dynamic_rows(table.spec, is_part=is_part(table.window))
    shared = -1 if rows.unknown == rows.padding else rows.unknown
    return MappedTable(table.window.start_values(seed), partitions_of(table.window), rows.bound, shared)


def sized_table(table: TableSpec, optimizer: RowOptimizer) -> TableSpec:
    """A table whose `rows` are its bound, also where that was given in bytes; others as they are."""
    if not isinstance(table.store, DynamicSpec):
        return table
    store = table.store
    if store.bound is None and isinstance(store.over, AdaptiveSpec):
        raise ConfigError(
            f"The store of table '{table.name}' has bound_bytes over adaptive rows, whose bytes are in the "
            "budget of all adaptive tables (adaptive.ratio, adaptive.budget); give it `bound` rows."
        )
    if store.bound is None:
        store = store.model_copy(update={"bound": _bound(table, store, optimizer), "bound_bytes": None})
    return table.model_copy(update={"rows": store.bound, "store": store})


def dynamic_bytes(table: TableSpec, store: DynamicSpec, optimizer: RowOptimizer, bound: int) -> int:
    """The most that rows with their optimizer state and the map of ids take, beside what a batch needs."""
    sized = table.model_copy(update={"rows": bound, "store": store})
    shape = RowShape(StoredTable(sized, TableWindow.whole(sized), optimizer))
    raw = 0 if sized.dtype == "float32" else 8
    rows = dynamic_rows(sized).total * (shape.row_bytes + raw)
    return rows + id_table_spec(store, bound, 0, table.name).most_map_bytes


def _bound(table: TableSpec, store: DynamicSpec, optimizer: RowOptimizer) -> int:
    """The most rows that fit into `bound_bytes`."""
    assert store.bound_bytes is not None
    least = dynamic_bytes(table, store, optimizer, PARTITIONS)
    if store.bound_bytes < least:
        raise ConfigError(
            f"The store of table '{table.name}' has bound_bytes {format_bytes(store.bound_bytes)}, and "
            f"{PARTITIONS} rows, the fewest, take {format_bytes(least)}; give it that, or more."
        )
    low, high = PARTITIONS, MOST_ROWS - 1
    while high - low > 1:
        middle = (low + high) // 2
        fits = dynamic_bytes(table, store, optimizer, middle) <= store.bound_bytes
        low, high = (middle, high) if fits else (low, middle)
    return low
