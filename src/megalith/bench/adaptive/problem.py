"""How many bytes a method may take, which tables stay whole, and what a row costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from megalith.core.errors import ConfigError, MegalithError
from megalith.core.schema import TableSpec
from megalith.core.units import format_bytes
from megalith.embeddings.memory import memory_of
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy
from megalith.embeddings.stores.choose import choose_adaptive, is_whole


class InfeasibleError(MegalithError):
    """A method cannot be as small as it is asked to be; the sentence says what it takes at least."""


@dataclass(frozen=True)
class SizeProblem:
    """The tables of a model, and by how much they have to shrink; the same for every method."""

    tables: tuple[TableSpec, ...]
    optimizer: RowOptimizer
    ratio: float
    """Bytes of weights and state as dense tables, divided by all bytes that a method may take."""
    total_steps: int
    seed: int
    weight_state_bytes: int = 8
    """State of the dense optimizer for one weight of a projection."""
    multi_hot: frozenset[str] = frozenset()
    """Features that may have several ids in a sample."""

    @cached_property
    def dense_bytes(self) -> int:
        """Weights and state of all tables, each row whole."""
        return memory_of(self.tables, [self.optimizer] * len(self.tables)).total

    @property
    def dense_weight_bytes(self) -> int:
        """Weights alone of all tables, each row whole."""
        return memory_of(self.tables, [self.optimizer] * len(self.tables)).weights

    @property
    def budget(self) -> int:
        """All bytes that a method may take, tables that stay whole included."""
        return int(self.dense_bytes / self.ratio)

    @cached_property
    def _chosen(self) -> list[TableSpec]:
        """The tables as adaptive ones would be: which of them are exempt is the same for all methods."""
        optimizers = [self.optimizer] * len(self.tables)
        try:
            return choose_adaptive(self.tables, optimizers, AdaptivePolicy(ratio=self.ratio))[0]
        except ConfigError as error:
            raise InfeasibleError(f"The tables that stay whole leave nothing: {error}") from error

    @cached_property
    def exempt(self) -> tuple[TableSpec, ...]:
        """Small tables, which stay whole in every method and are charged."""
        whole = {table.name for table in self._chosen if is_whole(table)}
        return tuple(table for table in self.tables if table.name in whole)

    @cached_property
    def governed(self) -> tuple[TableSpec, ...]:
        """All other tables."""
        whole = {table.name for table in self.exempt}
        return tuple(table for table in self.tables if table.name not in whole)

    @property
    def left(self) -> int:
        """Bytes for the governed tables."""
        return self.budget - memory_of(self.exempt, [self.optimizer] * len(self.exempt)).total

    def row_bytes(self, table: TableSpec, dim: int | None = None) -> int:
        """Weights and state of one row of a table, as it is or of another dim."""
        row = table.model_copy(update={"rows": 1, "dim": dim or table.dim})
        return memory_of([row], [self.optimizer]).total

    def projection_bytes(self, dim: int, output: int) -> int:
        """Weights and state of a matrix from one dim to another."""
        return dim * output * (4 + self.weight_state_bytes)

    def one_shape(self) -> TableSpec:
        """The first governed table, where all have one dim, pooling and type; methods with one pool of rows
        for all tables need that."""
        kinds = {(table.dim, table.pooling, table.dtype) for table in self.governed}
        if len(kinds) != 1:
            raise InfeasibleError("One pool of rows for all tables needs tables of one dim and pooling.")
        return self.governed[0]


def infeasible(method: str, least: float, left: int) -> InfeasibleError:
    """The error of a method whose governed tables take `least` bytes at least."""
    return InfeasibleError(
        f"{method} takes {format_bytes(math.ceil(least))} at least, and {format_bytes(max(left, 0))} is left "
        "beside the tables that stay whole."
    )


def start_scale(table: TableSpec) -> float:
    """Half-width of the start values of a table's rows, whatever holds them."""
    return 1 / math.sqrt(table.rows) if table.init_scale is None else table.init_scale


def share_rows(
    rows: Sequence[int], least: Sequence[int], row_bytes: Sequence[int], left: int, power: float = 1.0
) -> list[int] | None:
    """Physical rows of each table: in proportion to rows ** power, from `least` to all, within `left` bytes.

    None where the least does not fit.

    >>> share_rows([1000, 10], [1, 1], [4, 4], 404)
    [100, 1]
    """

    def at(factor: float) -> list[int]:
        return [
            min(count, max(floor, int(factor * count**power)))
            for count, floor in zip(rows, least, strict=True)
        ]

    def taken(factor: float) -> int:
        return sum(count * size for count, size in zip(at(factor), row_bytes, strict=True))

    low, high = 0.0, float(max(rows, default=1))
    if taken(low) > left:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) <= left else (low, middle)
    return at(low)
