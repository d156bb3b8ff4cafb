"""Random lookups over whole and chunked tables together: pools, slots instead of ids, and their twins."""

import torch
from chunked_worlds import CAPACITY, drawn_masks
from hypothesis import strategies as st
from lookup_worlds import FULL_FIRST, worlds

from megalith.ops.chunks.blocks import ChunkShape, ExpandedRows, compressed
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.chunks.chunked_rows_twin import ChunkedRowsTwin
from megalith.ops.chunks.kernels_twin import expanded_tables
from megalith.ops.embedding.descriptors import LookupBatch, LookupDescriptor
from megalith.ops.embedding.native_tables import NativeTables
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable

FEATURE, PADDING, LAYOUT = (LookupDescriptor._fields.index(name) for name in ("feature", "padding", "layout"))


class ChunkedLookups:
    """Tables of a world, of which those with a width are in pools of their own; the others are tensors."""

    def __init__(self, world, widths, seed, all_live=False):
        self.world, self.widths = world, widths
        self.weights, self.first, self.second = map(list, (world.weights, world.first, world.second))
        generator = torch.Generator().manual_seed(seed)
        self.pools, self.twins = [], []
        for table, width in enumerate(widths):
            self.pools.append(None)
            self.twins.append(None)
            if width:
                self._put(table, width, generator, all_live)
        self.tables = NativeTables(self.weights, self.first, self.second, pools=self.pools)
        self._resolve()

    def _put(self, table, width, generator, all_live):
        world, rows = self.world, len(self.weights[table])
        kind = OPTIMIZER_KINDS[int(world.steps[table, 0])]
        first = "full" if kind in FULL_FIRST else "row" if kind == "rowwise_adagrad" else "none"
        second = {"adam": "full", "lamb": "full", "rowwise_adam": "row"}.get(kind, "none")
        shape = ChunkShape(self.weights[table].shape[1], width, self.weights[table].dtype, first, second)
        described = world.lookups.descriptors
        padding = int(described[described[:, 0] == table][0, PADDING])
        pooled = [PooledTable(rows, StartValues(1, "t", shape.dim, 1.0, shape.dtype), padding)]
        pool = ChunkedRows(pooled, shape, CAPACITY)
        twin = ChunkedRowsTwin(pooled, shape, pool.statistics().row_bytes)
        masks = torch.full((rows,), shape.whole) if all_live else drawn_masks(shape, rows, generator)
        ids = masks.nonzero().view(-1)
        states = (state[ids] if state.numel() else state for state in (self.first[table], self.second[table]))
        chunks = int(((masks[ids][:, None] >> torch.arange(shape.chunks)) & 1).sum())
        utilities = torch.rand(chunks, generator=generator).bfloat16()
        growth = torch.rand(len(ids), generator=generator).bfloat16()
        expanded = ExpandedRows(self.weights[table][ids], *states)
        block = compressed(shape, ids, masks[ids], growth, utilities, expanded)
        for one in (pool, twin):
            one.load(0, block)
        self.pools[table], self.twins[table] = pool, twin
        self.weights[table] = self.first[table] = self.second[table] = torch.zeros(0)

    def _resolve(self):
        """Every lookup reads values of its own: ids, or slots of its pool."""
        world, values, offsets, factors, self.absent = self.world, [], [torch.zeros(1)], [], {}
        self.descriptors = world.lookups.descriptors.clone()
        at, listed = 0, {}
        for number, row in enumerate(world.lookups.descriptors.tolist()):
            lookup = LookupDescriptor(*row)
            bounds = world.offsets[lookup.feature * world.batch : (lookup.feature + 1) * world.batch + 1]
            begin, end = int(bounds[0]), int(bounds[-1])
            listed.setdefault(lookup.table, []).append((number, at, at + end - begin))
            values.append(world.values[begin:end])
            offsets.append((bounds[1:] - begin + at).float())
            if world.sample_weights is not None:
                factors.append(world.sample_weights[begin:end])
            at += end - begin
            self.descriptors[number, FEATURE] = number
        values = torch.cat(values)
        ids = values.clone()
        for table, places in listed.items():
            pool = self.pools[table]
            if pool is None:
                continue
            lookups = torch.tensor([[0, first, last] for _, first, last in places])
            found = pool.resolve(lookups, ids, trains=True)
            for number, first, last in places:
                values[first:last] = found.slots[first:last].to(values.dtype)
                has_padding = self.descriptors[number, PADDING] >= 0
                self.descriptors[number, PADDING] = 0 if has_padding else -1
                self.descriptors[number, LAYOUT] = 1
            self.absent[table] = found.absent
        weights = torch.cat(factors) if factors else None
        bounds = torch.cat(offsets).long()
        self.batch = LookupBatch(values, bounds, weights, len(self.descriptors))
        self.id_batch = LookupBatch(ids, bounds, weights, len(self.descriptors))
        self.id_descriptors = world.lookups.descriptors.clone()
        self.id_descriptors[:, FEATURE] = torch.arange(len(self.descriptors))

    def pooled(self, descriptors):
        return descriptors[descriptors[:, 3] != 3].contiguous()

    def expanded(self):
        """Weights of all tables with all their columns."""
        return [
            self.weights[table] if twin is None else expanded_tables(twin)[0]
            for table, twin in enumerate(self.twins)
        ]


@st.composite
def chunked_lookups(draw, all_live=False, **arguments):
    """Lookups of which about two thirds read chunked tables."""
    world = draw(worlds(**arguments))
    widths = []
    for weight in world.weights:
        dim = weight.shape[1]
        possible = [width for width in range(1, dim + 1) if dim % width == 0 and dim // width <= 64]
        widths.append(draw(st.sampled_from([0, *possible, *possible])))
    return ChunkedLookups(world, widths, draw(st.integers(0, 2**31)), all_live)
