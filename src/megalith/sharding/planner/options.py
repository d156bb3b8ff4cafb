"""Every way to cut a table that the planner looks at.

A way is a kind, a number of column slices, how rows are cut, and the memory tier. Its pieces come as blocks
of one worker (table_wise, column_wise, row_wise in a few parts: anywhere), of one node (table_row,
table_column, grid: on any node), or of everybody (row_wise, data_parallel). Tables with max pooling are never
cut by rows: the largest of partial maxima is right, but whose gradient it is gets lost. Those that keep
sequences are not cut by the rows of a node: it would have nothing to add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from megalith.core.errors import PlanError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec, too_many_rows
from megalith.sharding.plan import Kind
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Workers
from megalith.sharding.wire_format import replicated_gradient_bytes

MIN_DIM = 4
"""Columns that a slice keeps at least: narrower ones move more bytes of cache lines than of rows."""
ROW_CUTS = (0.0, 0.5, 0.95)
"""Weights of `TableStatistics.even_cut`: equal rows, a compromise, almost equal loads."""
_FEW_PARTS = (2, 3, 4)
CACHED_ROWS = (0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of a table on a slower tier that the first memory may keep, the usual one first."""
_MANY_WORKERS = 256
"""From here on only tables that crowd a node are cut over everybody: each worker would send a partial sum for
every sample, however few of its ids it holds, and pricing a thousand pieces of every table takes seconds."""
_CROWDED = 0.1
"""Of a node's first memory, the share of it that a table crowds it with."""
DATA_PARALLEL_BYTES = 2**28
"""A table whose dense gradient is larger is not copied to everybody."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to cut a table."""

    kind: Kind
    columns: int = 1
    """Column slices; they differ by at most one column."""
    row_cut: float | None = None
    """How rows are cut, None where they are not."""
    parts: int = 0
    """Parts of a row-wise cut that may go to any workers; 0 cuts for everybody, or all of a node."""
    tier: int = 0
    """The memory that holds the rows; beyond 0 behind a cache in the first."""
    cached: float = 1.0
    """The share of the rows that the first memory keeps: all, or those of a cache."""


def column_widths(dim: int, parts: int) -> tuple[int, ...]:
    """Widths of the slices, wider ones first.

    >>> column_widths(10, 3)
    (4, 3, 3)
    """
    narrow, wider = divmod(dim, parts)
    return (narrow + 1,) * wider + (narrow,) * (parts - wider)


def ways_of(
    table: TableSpec,
    traffic: TableStatistics,
    workers: Workers,
    tiers: Sequence[int] = (0,),
    min_dim: int = MIN_DIM,
    cached: Sequence[float] = CACHED_ROWS[:1],
) -> list[Way]:
    """All ways for one table, simplest first; on slower tiers each with a cache of any of these shares."""
    size, per_node, nodes = workers.world_size, workers.per_node, workers.whole_nodes
    most = max(1, table.dim // min_dim)
    hierarchical = per_node > 1 and nodes > 1
    row_cuts: tuple[float, ...] = ()
    if table.rows > 1 and table.pooling != "max":
        row_cuts = ROW_CUTS if traffic.hot_first else ROW_CUTS[:1]
    over_all = size > 1 and (
        size <= _MANY_WORKERS
        or not hierarchical
        or table.weight_bytes > _CROWDED * workers.device.bytes * per_node
    )
    cuts = [Way("table_wise")]
    cuts += [Way("column_wise", columns) for columns in range(2, min(most, size) + 1)]
    if over_all:
        cuts += [Way("row_wise", row_cut=cut) for cut in row_cuts]
    cuts += [
        Way("row_wise", row_cut=cut, parts=parts)
        for cut in row_cuts
        for parts in ((2,) if traffic.hot_first else _FEW_PARTS)
        if parts < min(size, table.rows + 1)
    ]
    if hierarchical:
        in_node = () if table.pooling == "none" else row_cuts
        cuts += [Way("table_row", row_cut=cut) for cut in in_node]
        if most >= per_node:
            cuts.append(Way("table_column", per_node))
        cuts += [Way("grid", columns, cut) for columns in _doubling(min(most, nodes)) for cut in in_node]
    found = [
        replace(way, tier=tier, cached=share)
        for tier in tiers
        for share in (cached if tier else (1.0,))
        for way in cuts
    ]
    small = replicated_gradient_bytes(table.rows, table.dim) <= DATA_PARALLEL_BYTES
    if size > 1 and small:
        found.append(Way("data_parallel"))
    if table.rows > MAX_DENSE_ROWS:
        parts = {way: _equal_parts(way, workers) for way in found}
        found = [way for way in found if table.rows <= MAX_DENSE_ROWS * parts[way]]
        if not found:
            raise PlanError(too_many_rows(table.name, -(-table.rows // max(parts.values()))))
    return found


def _equal_parts(way: Way, workers: Workers) -> int:
    """Into how many parts of as many rows each a way cuts a table; 1 where they are of different sizes."""
    if way.row_cut != 0.0:
        return 1
    return way.parts or (workers.world_size if way.kind == "row_wise" else workers.per_node)


def _doubling(most: int) -> list[int]:
    """2, 4, 8, ... and `most` itself."""
    powers = [2**power for power in range(1, 20) if 2**power <= most]
    return powers if most < 2 or most in powers else [*powers, most]
