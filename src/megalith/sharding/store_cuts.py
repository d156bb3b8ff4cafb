"""How a table may be cut, by what holds its rows: adaptive ones at units, dynamic ones at partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from megalith.core.schema import TableSpec
from megalith.core.store_spec import (
    ID_PARTITIONS,
    partition_edges,
    partitions_between,
    unit_edges,
    unit_rows,
)

Store = Literal["dense", "tiered", "adaptive", "dynamic"]
"""What holds the rows of a table, as plans name it."""


def given_kind(table: TableSpec) -> Store | None:
    """The kind of a table whose store says how it may be cut; None where the plan does."""
    if table.is_dynamic:
        return "dynamic"
    return None if table.store_spec.chunks is None else "adaptive"


def can_cut_rows(table: TableSpec) -> bool:
    """Whether the rows of a table may lie on several workers.

    The largest of partial maxima is right, but whose gradient it is gets lost. Which ids count in a mean of a
    dynamic table whose `unknown` ids read zeros only the holders of their rows know.
    """
    ids = table.store_spec.ids
    is_counted = ids is not None and ids.unknown == "zeros"
    return table.pooling != "max" and not (table.pooling == "mean" and is_counted)


def is_over_tiers(table: TableSpec) -> bool:
    """Whether the rows of a dynamic table are on disk behind a cache."""
    store = table.store_spec
    return store.ids is not None and store.chunks is None and store.disk is not None


def has_free_tier(table: TableSpec) -> bool:
    """Whether the plan decides between memory and disk for the whole rows of a table."""
    store = table.store_spec
    return table.store is None or (store.ids is None and store.chunks is None and store.disk is not None)


def store_edges(table: TableSpec, parts: int) -> list[int] | None:
    """Rows at which a table's store lets it be cut into about equal `parts`; None where any will do."""
    if table.is_dynamic:
        return partition_edges(table.rows, parts)
    return None if table.store_spec.chunks is None else unit_edges(table.rows, parts)


def cut_fault(table: TableSpec, parts: Iterable[tuple[int, int]], *, whole_rows: bool) -> str | None:
    """What is wrong with a cut of a table into ranges of rows, by its store; None where nothing is."""
    if table.is_dynamic:
        fits = all(partitions_between(table.rows, rows) is not None for rows in parts)
        where = f"where one of the {ID_PARTITIONS} partitions of its ids begins"
    elif table.store_spec.chunks is not None:
        unit = unit_rows(table.rows)
        fits = all(first % unit == 0 and (last % unit == 0 or last == table.rows) for first, last in parts)
        where = f"at multiples of {unit}"
    else:
        return None
    if fits and whole_rows:
        return None
    return f"cuts {with_article(given_kind(table))} one otherwise than by rows {where}"


def with_article(store: Store | None) -> str:
    """A kind of store in a sentence."""
    return f"{'an' if store == 'adaptive' else 'a'} {store}"
