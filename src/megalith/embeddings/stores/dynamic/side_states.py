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
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from megalith.embeddings.row_block import WEIGHT, PartSpec, Rectangle, RowBlock, take
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.table_state import TableShard, TableState
from megalith.ops.ids.policies import PARTITIONS

if TYPE_CHECKING:
    from megalith.embeddings.stores.dynamic.store import DynamicStore


@dataclass(frozen=True)
class SideShard:
    """Some rows that are read and written as a whole."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    specs: dict[str, PartSpec]
    read: Callable[[], dict[str, Tensor]]
    write: Callable[[dict[str, Tensor]], None]
    writes: bool = True
    sparse: bool = False
    start: None = None
    files: None = None
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
        self.write(content)
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


def clock_state(store: DynamicStore, table: int) -> TableState:
    """The time that last uses and scores of a table are measured in."""
    specs = {
        WEIGHT: PartSpec(torch.uint8, "element"),
        "batch": PartSpec(torch.int64, "row"),
        "unit": PartSpec(torch.float64, "row"),
    }

    def read() -> dict[str, Tensor]:
        batch = store.ids.batch
        unit = store.ids.tables[table].eviction.score_clock(batch).weight
        return {
            WEIGHT: torch.zeros(PARTITIONS, 1, dtype=torch.uint8),
            "batch": torch.full((PARTITIONS,), batch, dtype=torch.int64),
            "unit": torch.full((PARTITIONS,), unit, dtype=torch.float64),
        }

    def write(content: dict[str, Tensor]) -> None:
        batch = int(content["batch"].max())
        if batch != store.ids.batch:
            store.ids.resume(batch)
        now = store.ids.tables[table].eviction.score_clock(batch).weight
        store.score_factors[table] = now / float(content["unit"].max())

    shard = SideShard((0, PARTITIONS), (0, 1), specs, read, write)
    return TableState(PARTITIONS, 1, specs, (shard,))


def counter_state(store: DynamicStore, table: int) -> TableState:
    """What is counted of ids without a row."""
    width = store.ids.counter(table).shape[1]
    specs = {WEIGHT: PartSpec(torch.uint8, "element")}
    shard = SideShard(
        (0, PARTITIONS),
        (0, width),
        specs,
        lambda: {WEIGHT: store.ids.counter(table)},
        lambda content: store.ids.load_counter(table, content[WEIGHT]),
    )
    return TableState(PARTITIONS, width, specs, (shard,), optional=True)


def unknown_state(store: DynamicStore, table: int) -> TableState:
    """The row that ids without one share."""
    inner, row = store.inner_shard(table), torch.tensor([store.numbers[table].unknown])
    columns = inner.columns
    shard = SideShard(
        (0, 1),
        columns,
        dict(inner.specs),
        lambda: inner.read(row),
        lambda content: _put(inner, RowBlock(row, columns, content)),
    )
    return TableState(1, columns[1], dict(inner.specs), (shard,), optional=True)


def _put(shard: TableShard, block: RowBlock) -> None:
    shard.load(block)
