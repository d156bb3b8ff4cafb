"""A model as a partition sees it: what each table takes and is asked for, and what the dense part computes.

It comes from a frozen model's manifest (`from_manifest.py`), from tables in a YAML file without any run
(`shape_file.py`), or from whoever has both at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from megalith.core.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class ServedTable:
    """One table. Lookups and vectors of user features are those of a request, the others of an item."""

    name: str
    rows: int
    dim: int
    row_bytes: float
    """Mean, where rows are of unequal length."""
    bytes: int
    """All that it takes of a card's memory."""
    features: tuple[str, ...] = ()
    item_lookups: float = 0.0
    """Mean ids of an item."""
    item_vectors: float = 0.0
    user_lookups: float = 0.0
    """Mean ids of a request."""
    user_vectors: float = 0.0

    def lookups(self, items: int, user_once: bool = True) -> float:
        """Ids of a request; `user_once` is False where user features are looked up for every item."""
        return self.item_lookups * items + self.user_lookups * (1 if user_once else items)

    def vectors(self, items: int, user_once: bool = True) -> float:
        """Pooled vectors of a request."""
        return self.item_vectors * items + self.user_vectors * (1 if user_once else items)


@dataclass(frozen=True, slots=True)
class DenseWork:
    """The dense part of one item."""

    operations: Mapping[str, float] = field(hash=False)
    """Multiplications and additions by precision: float32, bfloat16, float16, int8."""
    weight_bytes: int
    num_inputs: int
    """Dense features."""
    columns: int
    """Of all intermediate values together: what buffers must hold."""
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Tables and dense part."""

    name: str
    tables: tuple[ServedTable, ...]
    dense: DenseWork
    precision: str
    """Of the tables; `mixed` where they differ."""

    @property
    def table_bytes(self) -> int:
        """Of all tables."""
        return sum(table.bytes for table in self.tables)

    @property
    def user_features(self) -> tuple[str, ...]:
        """Features that are the same for all items of a request."""
        return tuple(name for table in self.tables if table.user_vectors for name in table.features)

    def with_user_features(self, names: Collection[str]) -> ServedModel:
        """The same with these features, or tables of these names, sent once a request."""
        known = {name for table in self.tables for name in (table.name, *table.features)}
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"--user names '{name}', which no table has; {nearest(name, sorted(known))}"
                )
        return replace(self, tables=tuple(_with_user_side(table, set(names)) for table in self.tables))

    def with_table_bytes(self, total: int) -> ServedModel:
        """The same with more or fewer rows in every table, so that all take about `total` bytes."""
        factor = total / self.table_bytes
        tables = (
            replace(table, rows=int(table.rows * factor), bytes=int(table.bytes * factor))
            for table in self.tables
        )
        return replace(self, tables=tuple(tables))


def _with_user_side(table: ServedTable, names: set[str]) -> ServedTable:
    """Lookups of a table are shared out over its features alike: only their sum is known."""
    features = table.features or (table.name,)
    chosen = len(features) if table.name in names else sum(feature in names for feature in features)
    share = chosen / len(features)
    return replace(
        table,
        item_lookups=table.item_lookups * (1 - share),
        item_vectors=table.item_vectors * (1 - share),
        user_lookups=table.user_lookups + table.item_lookups * share,
        user_vectors=table.user_vectors + table.item_vectors * share,
    )
