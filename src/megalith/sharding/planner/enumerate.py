"""Enumerates the sharding options of a table.

An option is a kind, a number of column slices, how rows are cut, and the memory tier. Its shards come as
blocks of one worker (table_wise, column_wise, row_wise in a few parts: anywhere), of one node (table_row,
table_column, grid: on any node), or of all workers (row_wise, data_parallel). Tables with max pooling are
never cut by rows: the largest of partial maxima is right, but whose gradient it is gets lost. Those that keep
sequences are not cut by the rows of a node: it would have nothing to add up. Adaptive tables lie whole on one
worker, or are cut by rows over all of them, where their units begin; dynamic ones over some of them or all,
where partitions of their ids begin.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from megalith.core.errors import PlanError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, too_many_rows
from megalith.sharding.plan_estimate import USUAL_CACHE
from megalith.sharding.planner.search import MIN_DIM
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Topology
from megalith.sharding.planner.types import Enumerator, MemoryTiers, PlanInputs, ShardingOption
from megalith.sharding.store_cuts import can_cut_rows, is_over_tiers
from megalith.sharding.wire_format import replicated_gradient_bytes

ROW_CUTS = (0.0, 0.5, 0.95)
"""Weights of `TableStatistics.even_cut`: equal rows, a compromise, almost equal loads."""
_FEW_PARTS = (2, 3, 4)
CACHED_ROWS = (USUAL_CACHE, 0.1, 0.05, 0.02, 0.01)
"""Shares of a table on a slower tier that the first memory may keep, the usual one first."""
_MANY_WORKERS = 256
"""From here on only tables that crowd a node are cut over all workers: each worker would send a partial sum
for every sample, however few of its ids it holds, and pricing a thousand shards of every table takes
seconds."""
_CROWDED = 0.1
"""Of a node's first memory, the share of it that a table crowds it with."""
_UNEQUAL_SLICES, _WIDTH_STEP = (2, 3, 4), 4
"""Slices of cuts into unequal widths, and what these are multiples of. On so many workers a block is half of
what a worker sends or more, and equal slices leave corners."""
DATA_PARALLEL_BYTES = 2**28
"""A table whose dense gradient is larger is not replicated."""


class OptionEnumerator(Enumerator):
    """All kinds and cuts that keep `min_dim` columns to a slice."""

    def __init__(self, min_dim: int = MIN_DIM) -> None:
        self.min_dim = min_dim

    def enumerate(self, inputs: PlanInputs, memory: MemoryTiers) -> list[list[ShardingOption]]:
        """Options of every table, simplest first."""
        columns = sum(len(table.features) * table.dim for table in inputs.tables)
        share = -(-columns // inputs.topology.world_size)
        known: dict[Hashable, list[ShardingOption]] = {}
        for table in inputs.tables:
            if (key := _kind(inputs, memory, table)) not in known:
                known[key] = self._options(inputs, memory, table, share)
        return [known[_kind(inputs, memory, table)] for table in inputs.tables]

    def _options(
        self, inputs: PlanInputs, memory: MemoryTiers, table: TableSpec, widest: int
    ) -> list[ShardingOption]:
        options = enumerate_options(
            table,
            inputs.statistics[table.name],
            inputs.topology,
            memory.tiers_of(table),
            self.min_dim,
            memory.cached_rows,
            widest,
        )
        whole_rows = inputs.memory.whole_rows
        return [option for option in options if not (whole_rows and option.tier and option.columns > 1)]


def _kind(inputs: PlanInputs, memory: MemoryTiers, table: TableSpec) -> Hashable:
    """What the options of a table depend on: those of equal tables are the same list."""
    return (*table_kind(inputs, table), *memory.tiers_of(table))


def table_kind(inputs: PlanInputs, table: TableSpec) -> tuple[Hashable, ...]:
    """What shards of a table cost depends on: equal for tables that differ in their names alone."""
    shape = (table.rows, table.dim, table.dtype, table.pooling, len(table.features))
    return (*shape, repr(table.store), inputs.statistics[table.name])


def column_widths(dim: int, parts: int) -> tuple[int, ...]:
    """Widths of the slices, wider ones first.

    >>> column_widths(10, 3)
    (4, 3, 3)
    """
    narrow, wider = divmod(dim, parts)
    return (narrow + 1,) * wider + (narrow,) * (parts - wider)


def slice_widths(dim: int, option: ShardingOption) -> tuple[int, ...]:
    """Columns of the slices that an option cuts a table into, wider ones first.

    >>> slice_widths(96, ShardingOption("column_wise", 3, slice_dim=44))
    (44, 44, 8)
    """
    if not option.slice_dim:
        return column_widths(dim, option.columns)
    return (option.slice_dim,) * (option.columns - 1) + (dim - option.slice_dim * (option.columns - 1),)


def unequal_cuts(dim: int, widest: int, min_dim: int = MIN_DIM) -> list[ShardingOption]:
    """Cuts into slices of up to `widest` columns and a narrower one of what is left.

    >>> [slice_widths(32, option) for option in unequal_cuts(32, 28)]
    [(20, 12), (24, 8), (28, 4), (12, 12, 8)]
    """
    return [
        ShardingOption("column_wise", columns, slice_dim=slice_dim)
        for columns in _UNEQUAL_SLICES
        for slice_dim in range(_WIDTH_STEP, widest + 1, _WIDTH_STEP)
        if min_dim <= dim - slice_dim * (columns - 1) < slice_dim - 1
    ]


def enumerate_options(
    table: TableSpec,
    statistics: TableStatistics,
    topology: Topology,
    tiers: Sequence[int] = (0,),
    min_dim: int = MIN_DIM,
    cached: Sequence[float] = CACHED_ROWS[:1],
    widest: int = 0,
) -> list[ShardingOption]:
    """All options of one table, simplest first; on slower tiers each with a cache of any of these shares.

    On many workers slices may differ in width, up to `widest` columns: a worker's share of all columns.
    """
    if table.is_dynamic:
        return _dynamic_options(table, topology, tiers, cached)
    if table.store_spec.chunks is not None:
        return _adaptive_options(table, topology)
    size, per_node, nodes = topology.world_size, topology.per_node, topology.whole_nodes
    most = max(1, table.dim // min_dim)
    hierarchical = per_node > 1 and nodes > 1
    row_cuts: tuple[float, ...] = ()
    if table.rows > 1 and table.pooling != "max":
        row_cuts = ROW_CUTS if statistics.hot_first else ROW_CUTS[:1]
    over_all = size > 1 and (
        size <= _MANY_WORKERS
        or not hierarchical
        or table.weight_bytes > _CROWDED * topology.device.bytes * per_node
    )
    cuts = [ShardingOption("table_wise")]
    cuts += [ShardingOption("column_wise", columns) for columns in range(2, min(most, size) + 1)]
    cuts += unequal_cuts(table.dim, widest, min_dim) if size > _MANY_WORKERS else []
    if over_all:
        cuts += [ShardingOption("row_wise", row_cut=cut) for cut in row_cuts]
    cuts += [
        ShardingOption("row_wise", row_cut=cut, parts=parts)
        for cut in row_cuts
        for parts in ((2,) if statistics.hot_first else _FEW_PARTS)
        if parts < min(size, table.rows + 1)
    ]
    if hierarchical:
        in_node = () if table.pooling == "none" else row_cuts
        cuts += [ShardingOption("table_row", row_cut=cut) for cut in in_node]
        if most >= per_node:
            cuts.append(ShardingOption("table_column", per_node))
        cuts += [
            ShardingOption("grid", columns, cut) for columns in _doubling(min(most, nodes)) for cut in in_node
        ]
    options = [
        replace(option, tier=tier, cached=share)
        for tier in tiers
        for share in (cached if tier else (1.0,))
        for option in cuts
    ]
    small = replicated_gradient_bytes(table.rows, table.dim) <= DATA_PARALLEL_BYTES
    if size > 1 and small and 0 in tiers:
        options.append(ShardingOption("data_parallel"))
    if table.rows > MAX_DENSE_ROWS:
        parts = {option: _equal_parts(option, topology) for option in options}
        options = [option for option in options if table.rows <= MAX_DENSE_ROWS * parts[option]]
        if not options:
            raise PlanError(too_many_rows(table.name, -(-table.rows // max(parts.values()))))
    return options


def _adaptive_options(table: TableSpec, topology: Topology) -> list[ShardingOption]:
    """Whole, or equal rows on all workers; always in the first memory."""
    options = [ShardingOption("table_wise")]
    if topology.world_size > 1 and table.rows > 1 and can_cut_rows(table):
        options.append(ShardingOption("row_wise", row_cut=ROW_CUTS[0]))
    return options


def _dynamic_options(
    table: TableSpec, topology: Topology, tiers: Sequence[int], cached: Sequence[float]
) -> list[ShardingOption]:
    """Whole, or equal partitions of ids on some workers or all; in the first memory, or on the slowest behind
    a cache where the table says so."""
    size = topology.world_size
    options = [ShardingOption("table_wise")]
    if size > 1 and can_cut_rows(table):
        options.append(ShardingOption("row_wise", row_cut=ROW_CUTS[0]))
        options += [
            ShardingOption("row_wise", row_cut=ROW_CUTS[0], parts=parts)
            for parts in _FEW_PARTS
            if parts < size
        ]
    if not is_over_tiers(table) or max(tiers) == 0:
        return options
    return [replace(option, tier=max(tiers), cached=share) for share in cached for option in options]


def _equal_parts(option: ShardingOption, topology: Topology) -> int:
    """How many parts of equal rows an option cuts a table into; 1 where their sizes differ."""
    if option.row_cut != 0.0:
        return 1
    return option.parts or (topology.world_size if option.kind == "row_wise" else topology.per_node)


def _doubling(most: int) -> list[int]:
    """2, 4, 8, ... and `most` itself."""
    powers = [2**power for power in range(1, 20) if 2**power <= most]
    return powers if most < 2 or most in powers else [*powers, most]
