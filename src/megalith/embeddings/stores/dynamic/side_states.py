"""What a dynamic table knows beside its rows, as checkpoints see it.

    TABLE.clock     [64, 1]     of each partition: `batch`, the last that trained, and `unit`, what one use
                                adds to a score at that batch
    TABLE.counter   [64, bytes] what is counted of ids without a row, where admission counts
    TABLE.unknown   [1, dim]    the row that ids without one share: an id space of its own, with the one id 0

Rows of the first two are partitions of the ids, so they move with them. The last two are optional: a table
whose policy of admission has changed counts anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.embeddings.optimizers import RowOptimizer
from megalith.embeddings.row_block import WEIGHT, PartSpec, Rectangle, RowBlock, part_specs, take
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.dynamic.settings import dynamic_store
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.ids.policies import COUNTER_BUCKET_BYTES, PARTITIONS, id_table_spec

if TYPE_CHECKING:
    from megalith.embeddings.stores.dynamic.store import DynamicStore


@dataclass(frozen=True)
class SideShard:
    """Some rows that are read and written as a whole."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    specs: dict[str, PartSpec]
    read: Callable[[], dict[str, Tensor]]
    write: Callable[[dict[str, Tensor], slice | Tensor], None]
    """Takes all content, and which rows of it a block brought."""
    writes: bool = True
    sparse: bool = False
    start: None = None
    files: None = None
    touched: None = None
    chunk: None = None

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """All of it: it is small."""
        del max_bytes
        yield RowBlock(range(*self.rows), self.columns, self.read())

    def load(self, block: RowBlock) -> int:
        """Takes what a block has of it."""
        taken = take(block, Rectangle(self.rows, self.columns), self.specs)
        if taken is None:
            return 0
        content = self.read()
        for name, (values, columns) in taken.parts.items():
            (content[name] if columns is None else content[name][:, columns])[taken.rows] = values
        self.write(content, taken.rows)
        return taken.numbers

    def reset(self) -> None:
        """Never asked for: it leaves no row out."""
        raise TypeError("there are no start values")

    def clear(self) -> None:
        """Stays as it began: what a checkpoint lacks is loaded into new tables."""

    def snapshot(self, holds: Holds, copy: bool) -> TableShard:
        """As it is now."""
        del holds
        if not copy:
            return self
        content = {name: part.clone() for name, part in self.read().items()}
        return DenseShard(self.rows[0], self.columns[0], content, self.writes)


_CLOCK = {
    WEIGHT: PartSpec(torch.uint8, "element"),
    "batch": PartSpec(torch.int64, "row"),
    "unit": PartSpec(torch.float64, "row"),
}


def side_states(table: TableSpec, optimizer: RowOptimizer) -> dict[str, TableState]:
    """What a dynamic table has beside its rows, of which this process holds nothing: by name, in the order in
    which it is loaded."""
    store = dynamic_store(table)
    states = {"clock": TableState(PARTITIONS, 1, _CLOCK, ())}
    buckets = id_table_spec(store, table.rows, 0, table.name).admission.counter_buckets
    if buckets:
        parts = {WEIGHT: PartSpec(torch.uint8, "element")}
        width = buckets * COUNTER_BUCKET_BYTES
        states["counter"] = TableState(PARTITIONS, width, parts, (), optional=True)
    if store.unknown == "shared":
        states["unknown"] = TableState(1, table.dim, part_specs(table, optimizer), (), optional=True)
    return states


def held_side_states(store: DynamicStore, table: int) -> dict[str, TableState]:
    """The same of a table in a store, with what the store has of it."""
    stored = store.tables[table]
    makers = {"clock": _clock, "counter": _counter, "unknown": _unknown}
    return {
        name: replace(state, shards=(makers[name](store, table, state),))
        for name, state in side_states(stored.window.table, stored.optimizer).items()
    }


def _clock(store: DynamicStore, table: int, state: TableState) -> SideShard:
    """The time that last uses and scores of a table are measured in."""
    first, last = store.ids.partitions

    def read() -> dict[str, Tensor]:
        batch = store.ids.batch
        unit = store.ids.tables[table].eviction.score_clock(batch).weight
        return {
            WEIGHT: torch.zeros(last - first, 1, dtype=torch.uint8),
            "batch": torch.full((last - first,), batch, dtype=torch.int64),
            "unit": torch.full((last - first,), unit, dtype=torch.float64),
        }

    def write(content: dict[str, Tensor], rows: slice | Tensor) -> None:
        batch = int(content["batch"][rows].max())
        if batch != store.ids.batch:
            store.ids.resume(batch)
        now = store.ids.tables[table].eviction.score_clock(batch).weight
        store.score_factors[table] = now / float(content["unit"][rows].max())

    return SideShard((first, last), (0, 1), state.parts, read, write)


def _counter(store: DynamicStore, table: int, state: TableState) -> SideShard:
    """What is counted of ids without a row."""
    return SideShard(
        store.ids.partitions,
        (0, state.dim),
        state.parts,
        lambda: {WEIGHT: store.ids.counter(table)},
        lambda content, _: store.ids.load_counter(table, content[WEIGHT]),
    )


def _unknown(store: DynamicStore, table: int, state: TableState) -> SideShard:
    """The row that ids without one share; all parts of a table have the same, and the first writes it."""
    inner, row = store.inner_shard(table), torch.tensor([store.numbers[table].unknown])
    columns = inner.columns
    return SideShard(
        (0, 1),
        columns,
        state.parts,
        lambda: inner.read(row),
        lambda content, _: _put(inner, RowBlock(row, columns, content)),
        writes=store.ids.partitions[0] == 0,
    )


def _put(shard: TableShard, block: RowBlock) -> None:
    shard.load(block)
