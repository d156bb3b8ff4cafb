"""Tables in pools of rows over a disk, trained a little, for tests of their checkpoints."""

from dataclasses import dataclass
from pathlib import Path

import torch

from megalith.embeddings.row_block import PartSpec
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.row_files import layout_digest
from megalith.embeddings.stores.tiered_shard import SegmentPool
from megalith.embeddings.table_state import TableState
from megalith.ops.stores.start_values import StartValues, start_values_twin
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows

SEED, SCALE = 3, 0.5
STATES = {
    "sgd": (),
    "rowwise_adagrad": ("row",),
    "adagrad": ("element",),
    "adam": ("element", "element"),
    "rowwise_adam": ("element", "row"),
}
"""What each optimizer keeps of a row."""


def brought(pool, lookups, values, batch, trains):
    """The slots of a batch whose rows are in memory."""
    slots = pool.resolve(lookups, values, batch, trains)
    pool.arrive(batch)
    return slots


@dataclass(frozen=True)
class Table:
    """A whole table: what is known of it wherever it lies."""

    name: str
    rows: int
    dim: int
    dtype: torch.dtype = torch.float32
    states: tuple[str, ...] = ("row",)

    @property
    def parts(self):
        names = ("first", "second")
        return {
            "weight": PartSpec(self.dtype, "element"),
            **{name: PartSpec(torch.float32, per) for name, per in zip(names, self.states, strict=False)},
        }

    def start(self, rectangle):
        (first, _), (left, right) = rectangle
        return StartValues(SEED, self.name, right - left, SCALE, self.dtype, first, left)

    def whole(self):
        return (0, self.rows), (0, self.dim)

    def state(self, shards):
        return TableState(self.rows, self.dim, self.parts, tuple(shards))

    def truth(self, trained):
        """All rows where those of `trained` have values of their own: a function of row and column."""
        weight = start_values_twin(self.start(self.whole()), torch.arange(self.rows))
        ids = torch.tensor(sorted(trained), dtype=torch.int64)
        parts = {"weight": weight}
        for number, (name, spec) in enumerate(self.parts.items()):
            shape = (self.rows, self.dim) if spec.per == "element" else (self.rows,)
            part = parts.setdefault(name, torch.zeros(shape, dtype=spec.dtype))
            values = (ids[:, None] * 31 + torch.arange(self.dim) * 7 + number) % 251 - 100.0
            part[ids] = (values if spec.per == "element" else values[:, 0]).to(spec.dtype)
        return parts

    def cut(self, parts, rectangle):
        (first, last), (left, right) = rectangle
        return {
            name: (part[first:last, left:right] if part.dim() == 2 else part[first:last]).clone()
            for name, part in parts.items()
        }

    def dense(self, parts, rectangle, writes=True):
        """A rectangle in memory."""
        cut = self.cut(parts, rectangle)
        return DenseShard(rectangle[0][0], rectangle[1][0], cut, writes, self.start(rectangle))


def make_pool(folder, windows, capacity=300, segment_bytes=24_000, **settings):
    """A pool over (table, rectangle) pairs whose rows have one shape."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table, (_, (left, right)) = windows[0]
    parts = [
        torch.zeros(
            (capacity + 1, right - left) if spec.per == "element" else (capacity + 1,), dtype=spec.dtype
        )
        for spec in table.parts.values()
    ]
    pooled = [
        PooledTable(rows[1] - rows[0], each.start((rows, columns))) for each, (rows, columns) in windows
    ]
    disk = DiskSettings(folder, layout_digest(pooled, parts), segment_bytes, **settings)
    return SegmentPool(TieredRows(pooled, parts, disk))


def train(pool, number, ids, parts, batch):
    """Gives rows of a table, by ids of its window, the values that `parts` of the window have."""
    for some in torch.tensor(sorted(ids), dtype=torch.int64).split(100):
        slots = brought(pool.rows, torch.tensor([[number, 0, len(some)]]), some, batch, trains=True).long()
        for part, values in zip(pool.rows.parts, parts.values(), strict=True):
            part[slots] = values[some]
        pool.rows.release(batch)
        batch += 1
    return batch


def contents(shard):
    """All rows of a shard, whatever keeps them, and which of them are listed."""
    first, last = shard.rows
    listed = []
    for block in shard.blocks(1000):
        listed += (torch.as_tensor(block.ids) - first).tolist()
    assert len(listed) == len(set(listed))
    if isinstance(shard, DenseShard):
        return shard.parts, set(listed)
    parts = shard.pool.rows.read(shard.table, torch.arange(last - first))
    return dict(zip(shard.specs, parts, strict=True)), set(listed)
