"""A sharding plan: which rectangle of which table is on which worker. It is a file, `plan.json`.

Every placement is a list of rectangles (rows x columns) that together are the table exactly once, or, for
`data_parallel`, the whole table once on every worker. The kind says how the rectangles were cut; what the
runtime does follows from the rectangles and, for kinds that stay inside a node, from the nodes. A placement
also says which store keeps its rows and in which memory; a plan says whether this runtime runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_serializer, field_validator

from megalith.core.config import Config
from megalith.core.errors import PlanError
from megalith.core.files import read_json_object, write_atomic
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, too_many_rows
from megalith.sharding.plan_estimate import PlanEstimate
from megalith.sharding.store_cuts import (
    Store,
    can_cut_rows,
    cut_fault,
    given_kind,
    is_over_tiers,
    with_article,
)

Kind = Literal["table_wise", "row_wise", "column_wise", "data_parallel", "table_row", "table_column", "grid"]
Codec = Literal["fp32", "fp16", "bf16", "int8"]
VERSION = 2


class ExchangeConfig(Config):
    """What travels between workers, and in which precision."""

    forward: Codec = "fp32"
    """Pooled vectors on their way to the samples."""
    backward: Codec = "fp32"
    """Their gradients on the way back."""
    deduplicate: bool = False
    """Send each id of a feature once to a worker, however many samples of the batch hold it."""


class Shard(Config):
    """A rectangle of a table on one worker; both ranges are [start, stop)."""

    worker: int = Field(ge=0)
    rows: tuple[int, int]
    columns: tuple[int, int]
    cache_bytes: int = Field(default=0, ge=0)
    """Of the worker's fast memory, what caches the rows of a tiered store; 0 for a dense one."""

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return self.rows[1] - self.rows[0]

    @property
    def dim(self) -> int:
        """How many columns it has."""
        return self.columns[1] - self.columns[0]


class Placement(Config):
    """Where one table goes."""

    table: str
    kind: Kind
    store: Store = "dense"
    """`dense` keeps all rows in `tier`; `tiered` keeps them there behind a cache in the fastest memory;
    `adaptive` keeps the chunks that live, `dynamic` the rows of a bounded number of ids."""
    tier: str | None = None
    """The memory that holds the rows, as the hardware description names it; None is the fastest."""
    shards: tuple[Shard, ...] = Field(min_length=1)

    @property
    def workers(self) -> tuple[int, ...]:
        """Every worker that holds a part, once, rising."""
        return tuple(sorted({shard.worker for shard in self.shards}))

    @property
    def cache_bytes(self) -> int:
        """What all workers together cache of it."""
        return sum(shard.cache_bytes for shard in self.shards)


class Runnable(Config):
    """Whether this runtime runs a plan, and if not, why."""

    value: bool = True
    reason: str = ""
    """Empty where it does."""

    def __str__(self) -> str:
        return "yes" if self.value else f"no ({self.reason})"


class ShardingPlan(Config):
    """Where every table goes, for one number of workers."""

    version: int = VERSION
    """Of the file's format."""
    world_size: int = Field(ge=1)
    """Workers that it is for."""
    workers_per_node: int = Field(ge=1)
    """Workers [n * this, (n + 1) * this) share node n; a last node may have fewer."""
    placements: tuple[Placement, ...]
    """Where each table goes."""
    exchange: ExchangeConfig = ExchangeConfig()
    """What travels between workers."""
    runnable: Runnable = Runnable()
    """A plan may be for machines that are not here; `megalith train` takes none of those."""
    estimate: PlanEstimate | None = None
    """What the planner expects of it; nothing that the runtime reads. None for a plan written by hand."""

    @field_validator("estimate", mode="before")
    @classmethod
    def _read_estimate(cls, value: Any) -> Any:
        """An empty one stands for none."""
        return None if value == {} else value

    @field_serializer("estimate", mode="wrap")
    def _write_estimate(self, value: PlanEstimate | None, serialize: Any) -> Any:
        """None is written as an empty one."""
        return {} if value is None else serialize(value)

    def placement(self, table: str) -> Placement:
        """Where a table goes."""
        return next(placement for placement in self.placements if placement.table == table)

    def check(self, tables: Sequence[TableSpec]) -> None:
        """Refuses a plan that is not for these tables, with one sentence that says what to do."""
        specs = {table.name: table for table in tables}
        named = [placement.table for placement in self.placements]
        for name in specs:
            if named.count(name) != 1:
                raise PlanError(
                    f"The plan places table '{name}' {named.count(name)} times; fix or regenerate it "
                    "with `megalith plan`."
                )
        for placement in self.placements:
            if placement.table not in specs:
                raise PlanError(
                    f"The plan places table '{placement.table}', which the model does not have; fix or "
                    "regenerate it with `megalith plan`."
                )
            self._check_placement(placement, specs[placement.table])

    def _check_placement(self, placement: Placement, table: TableSpec) -> None:
        def refuse(what: str) -> PlanError:
            return PlanError(
                f"The plan's placement of table '{table.name}' {what}; fix or regenerate it with "
                "`megalith plan`."
            )

        kind, store = given_kind(table), placement.store
        if placement.cache_bytes and not (store == "tiered" or is_over_tiers(table)):
            raise refuse(f"gives {with_article(store)} store cache_bytes, which only a tiered one has")
        if store in ("adaptive", "dynamic") and store != kind:
            raise refuse(f"is of {with_article(store)} one, and the table is not")
        if kind is not None and store not in ("dense", kind):
            raise refuse(f"is of {with_article(store)} one, and the table is {kind}")
        for shard in placement.shards:
            inside = 0 <= shard.rows[0] < shard.rows[1] <= table.rows
            if not (inside and 0 <= shard.columns[0] < shard.columns[1] <= table.dim):
                raise refuse(
                    f"has a rectangle of rows {_range(shard.rows)}, columns {_range(shard.columns)}, which "
                    f"is no part of {table.rows} x {table.dim}"
                )
            if shard.num_rows > MAX_DENSE_ROWS:
                raise PlanError(too_many_rows(table.name, shard.num_rows))
            if shard.worker >= self.world_size:
                raise refuse(f"names worker {shard.worker} of {self.world_size}, the first being 0")
        area = sum(shard.num_rows * shard.dim for shard in placement.shards)
        if placement.kind == "data_parallel":
            whole = all((shard.num_rows, shard.dim) == (table.rows, table.dim) for shard in placement.shards)
            once = len(placement.shards) == len(placement.workers) == self.world_size
            if not (whole and once):
                raise refuse("is data_parallel but does not put the whole table on every worker")
            if kind is not None:
                raise refuse(f"copies {with_article(kind)} one to every worker")
            return
        whole_rows = all(shard.dim == table.dim for shard in placement.shards)
        fault = cut_fault(table, [shard.rows for shard in placement.shards], whole_rows=whole_rows)
        if fault is not None:
            raise refuse(fault)
        twice = _overlap(placement.shards)
        if twice is not None:
            raise refuse(f"does not cover the table exactly once: it has {_cell(*twice)} twice")
        if area != table.rows * table.dim:
            cell = _missing(placement.shards, table)
            raise refuse(f"does not cover the table exactly once: it lacks {_cell(*cell)}")
        by_rows = any(shard.num_rows < table.rows for shard in placement.shards)
        if by_rows and not can_cut_rows(table):
            with_what = "max pooling"
            if table.pooling != "max":
                with_what = "mean pooling in which ids without a row do not count (unknown: zeros)"
            raise refuse(f"cuts the rows of a table with {with_what}")

    def write(self, path: Path) -> None:
        """Writes the plan file, whole or not at all."""
        write_atomic(path, json.dumps(self.model_dump(mode="json"), indent=1) + "\n")


def read_plan(path: Path) -> ShardingPlan:
    """The plan in a file, or one sentence that names it."""
    content = read_json_object(path, fix=f"make it with `megalith plan RECIPE --out {path}`", error=PlanError)
    version = content.get("version")
    if version != VERSION:
        raise PlanError(
            f"{path} has plan version {version}, this package reads {VERSION}; "
            "regenerate it with `megalith plan`."
        )
    try:
        return ShardingPlan.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PlanError(f"{path}, {where}: {first['msg']}; regenerate it with `megalith plan`.") from error


def _overlap(shards: Sequence[Shard]) -> tuple[int, int] | None:
    """The first cell that two rectangles share. They are few, so pairs are looked at."""
    ordered = sorted(shards, key=lambda shard: shard.rows)
    for index, shard in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if other.rows[0] >= shard.rows[1]:
                break
            if shard.columns[0] < other.columns[1] and other.columns[0] < shard.columns[1]:
                return other.rows[0], max(shard.columns[0], other.columns[0])
    return None


def _missing(shards: Sequence[Shard], table: TableSpec) -> tuple[int, int]:
    """The first cell that no rectangle has; none lies in two of them, and there is one."""
    for row in sorted({0, *(edge for shard in shards for edge in shard.rows)} - {table.rows}):
        column = 0
        for left, right in sorted(shard.columns for shard in shards if shard.rows[0] <= row < shard.rows[1]):
            if left > column:
                break
            column = right
        if column < table.dim:
            return row, column
    raise AssertionError("every cell is covered")


def _range(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]} to {bounds[1]}"


def _cell(row: int, column: int) -> str:
    return f"row {row}, column {column}"


def has_column_shards(placement: Placement) -> bool:
    """Whether a table's rows are cut, so that several workers hold columns of one."""
    return len({shard.columns for shard in placement.shards}) > 1
