"""Random pools of chunked rows, and what is done with them."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.chunked_rows_twin import ChunkedRowsTwin
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable
from megalith.ops.tensors import STORED_DTYPES

WIDTHS = (
    (1, 1),
    (10, 1),
    (64, 1),
    (12, 2),
    (20, 4),
    (64, 8),
    (64, 16),
    (48, 16),
    (64, 64),
    (33, 11),
    (24, 3),
)
"""(columns of a row, columns of a chunk)"""
WIDTHS += ((24, 3), (63, 21), (130, 10), (36, 18), (128, 32), (100, 100))
CAPACITY = 1 << 26


@dataclass
class PoolWorld:
    """Tables of one shape."""

    shape: ChunkShape
    rows: tuple[int, ...]
    paddings: tuple[int, ...]

    def tables(self):
        starts = [
            StartValues(3, f"t{n}", self.shape.dim, 0.5, self.shape.dtype) for n in range(len(self.rows))
        ]
        both = zip(self.rows, starts, self.paddings, strict=True)
        return [PooledTable(rows, start, padding) for rows, start, padding in both]

    def pools(self):
        pool = ChunkedRows(self.tables(), self.shape, CAPACITY)
        return pool, ChunkedRowsTwin(self.tables(), self.shape, pool.statistics().row_bytes)


@st.composite
def shapes(draw, dtypes=STORED_DTYPES):
    dim, width = draw(st.sampled_from(WIDTHS))
    states = draw(st.sampled_from([("none", "none"), ("row", "none"), ("full", "row"), ("full", "full")]))
    return ChunkShape(dim, width, draw(st.sampled_from(dtypes)), *states)


@st.composite
def pool_worlds(draw, shape=None):
    rows = draw(st.lists(st.sampled_from([1, 7, 100, 3000, 200_000]), min_size=1, max_size=3))
    paddings = [draw(st.sampled_from([-1, -1, 0])) for _ in rows]
    return PoolWorld(shape or draw(shapes()), tuple(rows), tuple(paddings))


def drawn_masks(shape, count, generator, empty=0.2):
    """Of all kinds: none, one, some, all chunks."""
    share = torch.rand(count, 1, generator=generator)
    bits = torch.rand(count, shape.chunks, generator=generator) < share
    bits[torch.rand(count, generator=generator) < empty] = False
    bits[torch.rand(count, generator=generator) < 0.2] = True
    return (bits.long() << torch.arange(shape.chunks)).sum(dim=1)


def drawn_ids(rows, count, generator):
    """Some often, some rarely."""
    spread = torch.rand(count, generator=generator) ** 3
    return (spread * rows).long().clamp(max=rows - 1)


def drawn_batch(world, generator, index=torch.int64):
    """Values of some lookups, two of which may read the same table."""
    lookups, values, at = [], [], 0
    for _ in range(int(torch.randint(1, 4, (), generator=generator))):
        table = int(torch.randint(0, len(world.rows), (), generator=generator))
        count = int(torch.randint(0, 60, (), generator=generator))
        lookups.append([table, at, at + count])
        values.append(drawn_ids(world.rows[table], count, generator))
        at += count
    return torch.tensor(lookups), torch.cat(values).to(index)
