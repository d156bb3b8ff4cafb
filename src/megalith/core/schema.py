"""What a model reads and what it stores: features and embedding tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.core.store_spec import AnyStore, DenseSpec, StoreKind, StoreSpec, store_in_full

Pooling = Literal["sum", "mean", "max", "none"]
WeightType = Literal["float32", "float16", "bfloat16"]

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
MAX_NARROW_ROWS = 1 << 31
"""Ids of tables of at most so many rows are kept, and travel, in four bytes."""
MAX_DENSE_ROWS = 2**32 - 1
"""Of a table, or of a worker's part of one: the native core counts rows in 32 bits."""


class FeatureSpec(Config):
    """A categorical feature: ids in [0, num_ids), one a sample or several.

    `num_ids` of None stands for raw ids: any 64-bit value, for tables with a dynamic store. `max_length` is
    the most ids a sample may hold; 1 means exactly one, None means any number.
    """

    name: str
    """Of the feature, as the data names it."""
    num_ids: int | None = Field(ge=1)
    """Ids are below this; None is any 64-bit value."""
    max_length: int | None = Field(default=1, ge=1)
    """Most ids of a sample; 1 is exactly one, None any number."""
    vocabulary: str | None = None
    """The feature whose ids it shares: by default both are looked up in one table; None has its own."""

    @property
    def is_raw(self) -> bool:
        """Whether its ids are any 64-bit values."""
        return self.num_ids is None

    @property
    def multi_hot(self) -> bool:
        """Whether a sample may have other than exactly one id."""
        return self.max_length != 1


class TableSpec(Config):
    """An embedding table and the features that look rows up in it.

    Any dim from 1; several features may share a table; a feature may also be looked up in several tables.
    `pooling="none"` keeps a sequence: one vector for every id instead of one for every sample.
    """

    name: str
    """Of the table; checkpoints and plans find it by that."""
    rows: int = Field(default=0, ge=0)
    """Of a dynamic table its bound, which need not be given twice. 0 is not known yet: the ids are raw ones,
    and the table still needs a dynamic store."""
    dim: int = Field(ge=1)
    """Columns."""
    features: tuple[str, ...] = Field(min_length=1)
    """Those that look rows up in it."""
    pooling: Pooling = "sum"
    """What becomes of the vectors of a sample's ids; `none` keeps them all."""
    dtype: WeightType = "float32"
    """How weights are stored."""
    padding_index: int | None = Field(default=None, ge=0)
    """An id that reads as zeros, does not count in a mean and is never updated."""
    init_scale: float | None = Field(default=None, ge=0.0, le=1e30)
    """Half-width of the uniform start values; None takes 1/sqrt(rows), so that rare rows start near zero, and
    1/(16 sqrt(dim)) for dynamic tables, whose start values do not depend on their bound."""
    store: AnyStore | StoreKind | None = None
    """What holds the rows; a kind alone is short for `{kind: ...}`. None is what a run's memory asks for, or
    else dense."""

    @field_validator("store", mode="before")
    @classmethod
    def _store_in_full(cls, store: object) -> object:
        return store_in_full(store)

    @field_validator("rows", mode="before")
    @classmethod
    def _rows_of_raw_ids(cls, rows: object) -> object:
        return 0 if rows is None else rows

    @field_validator("features")
    @classmethod
    def _features_are_distinct(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        twice = _repeated(features)
        if twice:
            raise ValueError(f"feature '{twice}' occurs twice in one table; remove one")
        return features

    @model_validator(mode="after")
    def _has_a_name(self) -> TableSpec:
        if not self.name:
            raise ValueError("a table needs a name")
        return self

    @property
    def store_spec(self) -> StoreSpec:
        """What holds the rows; in memory where nothing is said."""
        return DenseSpec() if self.store is None or isinstance(self.store, str) else self.store

    @property
    def is_dynamic(self) -> bool:
        """Whether its ids are any 64-bit values, of which a bounded number have a row."""
        return self.store_spec.ids is not None

    @property
    def expires_by_time(self) -> bool:
        """Whether its ids leave by the event times of their uses."""
        ids = self.store_spec.ids
        return ids is not None and ids.expiry.seconds is not None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, without optimizer state."""
        return self.rows * self.dim * DTYPE_BYTES[self.dtype]

    @property
    def output_dim(self) -> int:
        """Columns this table adds to the pooled output; a sequence table adds none."""
        return 0 if self.pooling == "none" else self.dim * len(self.features)


def check_tables(tables: Sequence[TableSpec]) -> None:
    """Refuses a table named twice, since checkpoints and plans find tables by name, and one without rows."""
    for table in tables:
        if not table.rows and not table.is_dynamic:
            raise ConfigError(
                f"Table '{table.name}' has no rows, and the ids of feature '{table.features[0]}' are raw "
                "64-bit values; give it a dynamic store (embeddings.stores: "
                f"{{{table.name}: {{kind: dynamic, bound: 1000000}}}}), or a number of rows."
            )
    twice = _repeated([table.name for table in tables])
    if twice:
        raise ConfigError(f"Table '{twice}' is named twice; give each table a name of its own.")


def too_many_rows(table: str, rows: int) -> str:
    """The sentence for a table, or a worker's part of one, with more rows than MAX_DENSE_ROWS."""
    return (
        f"Table '{table}' has {rows:,} rows on one worker, which can hold {MAX_DENSE_ROWS:,} of a table; cut "
        "its rows over more workers, or hash its ids into fewer rows."
    )


def feature_order(tables: Sequence[TableSpec]) -> tuple[str, ...]:
    """Every feature once, in the order in which the tables first name it."""
    return tuple(dict.fromkeys(feature for table in tables for feature in table.features))


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
