"""A dynamic table as its parts are told of it: its map of ids, its bound, its rows in the inner store.

row 0 .. bound - 1    of the ids that have one
row bound             of all ids without one: shared and trained, or zeros
row bound + 1         of the padding id, where ids without a row do not read zeros as well
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from megalith.core.errors import ConfigError
from megalith.core.schema import TableSpec
from megalith.core.store_spec import DynamicSpec
from megalith.core.units import format_bytes
from megalith.embeddings.initial_values import TableWindow
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.base import StoredTable
from megalith.embeddings.stores.tiered import RowShape
from megalith.ops.ids.policies import MOST_ROWS, PARTITIONS, IdAdmission, IdEviction, IdExpiry, IdTableSpec

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


def dynamic_rows(table: TableSpec) -> DynamicRows:
    """What the rows under a dynamic table stand for."""
    bound = table.rows
    if dynamic_store(table).unknown == "zeros":
        return DynamicRows(bound, bound, bound)
    return DynamicRows(bound, bound, -1 if table.padding_index is None else bound + 1)


def inner_spec(table: TableSpec) -> TableSpec:
    """The table of row numbers that lies under a dynamic one; any other as it is."""
    if not table.is_dynamic:
        return table
    rows = dynamic_rows(table)
    return table.model_copy(
        update={
            "rows": rows.total,
            "store": dynamic_store(table).over,
            "padding_index": None if rows.padding < 0 else rows.padding,
        }
    )


def inner_table(table: StoredTable) -> StoredTable:
    """The same as a store is given it."""
    spec = inner_spec(table.spec)
    return StoredTable(spec, TableWindow.whole(spec), table.optimizer)


def id_table_spec(store: DynamicSpec, bound: int, seed: int, table: str) -> IdTableSpec:
    """The settings of a table's map of ids; draws depend on the seed and the table's name."""
    admission, eviction, expiry = store.admission, store.eviction, store.expiry
    digest = hashlib.sha256(f"ids:{seed}:{table}".encode()).digest()
    return IdTableSpec(
        bound=bound,
        admission=IdAdmission(
            admission.kind, admission.count, admission.probability, admission.counter_bytes
        ),
        eviction=IdEviction(eviction.kind, eviction.halve_every, eviction.half_life),
        expiry=IdExpiry(expiry.batches, expiry.seconds, expiry.score),
        seed=int.from_bytes(digest[:8], "little"),
    )


def sized_table(table: TableSpec, optimizer: RowOptimizer) -> TableSpec:
    """A table whose `rows` are its bound, also where that was given in bytes; others as they are."""
    if not isinstance(table.store, DynamicSpec):
        return table
    store = table.store
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
