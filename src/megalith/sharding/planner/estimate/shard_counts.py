"""How much of a table's lookups each shard of an option gets: rows, ids, distinct rows, bags.

Counts follow from the batch, the mean pooling length and the table's hot rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from megalith.core.schema import TableSpec
from megalith.sharding.planner.enumerate import column_widths
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.types import Floats, Ints, ShardingOption, Workload
from megalith.sharding.store_cuts import store_edges

ShardCounts = tuple[Floats, Floats, Floats, Floats, Floats, Floats]
"""Of shards: the first row, rows, ids, distinct rows, ids sent, bags."""
FLAT, HIERARCHICAL, NODE_COLUMNS, REPLICATED = range(4)
"""How vectors travel: straight to their samples, summed in the node first, cut inside a node, not at all."""
_GOLDEN = 0.6180339887498949
_ROUTES = {
    "table_row": HIERARCHICAL,
    "grid": HIERARCHICAL,
    "table_column": NODE_COLUMNS,
    "data_parallel": REPLICATED,
}


@dataclass(frozen=True)
class RepeatedShards:
    """The ranges of a table in a list, for others that are equal to it."""

    table: int
    ranges: range
    begin: int
    """Its first shard."""


@dataclass
class ShardList:
    """Descriptions of shards, range after range; shards of a range differ in their counts alone."""

    counts: list[ShardCounts] = field(default_factory=list)
    facts: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    """Of each range: its length, table, columns of a shard, slices, route, tier and parts of the rows."""
    cached: list[float] = field(default_factory=list)
    """Of each range: the share of its rows that the first memory keeps."""
    replicas: int = 1
    """Workers that hold a table which all of them hold: its shards are alike, so one is described for all."""
    size: int = 0
    """All shards, replicas included."""

    def add(self, counts: ShardCounts, table: int, dim: int, option: ShardingOption, parts: int) -> int:
        """Appends a range of shards and says where it begins."""
        start, length = self.size, len(counts[0])
        route = _ROUTES.get(option.kind, FLAT)
        self.size += length * (self.replicas if route == REPLICATED else 1)
        self.counts.append(counts)
        self.facts.append((length, table, dim, option.columns, route, option.tier, parts))
        self.cached.append(option.cached)
        return start

    def repeat(self, written: RepeatedShards, table: int) -> int:
        """Appends the ranges of a table for an equal one, and says by how much later they begin."""
        moved = self.size - written.begin
        turned: dict[int, ShardCounts] = {}
        for position in written.ranges:
            counts, facts = self.counts[position], self.facts[position]
            if id(counts) not in turned:
                parts = facts[0]
                turned[id(counts)] = rotated(counts, _turn(table, parts) - _turn(written.table, parts))
            self.counts.append(turned[id(counts)])
            self.facts.append((facts[0], table, *facts[2:]))
            self.size += facts[0] * (self.replicas if facts[4] == REPLICATED else 1)
        self.cached += [self.cached[position] for position in written.ranges]
        return moved

    def described(self) -> Ints:
        """Of all shards: the position of their description."""
        lengths = np.array([fact[0] for fact in self.facts], dtype=np.int64)
        replicated = np.array([fact[4] == REPLICATED for fact in self.facts])
        times = np.repeat(np.where(replicated, self.replicas, 1), lengths)
        return np.repeat(np.arange(len(times)), times)


def row_cut(
    table: TableSpec, statistics: TableStatistics, option: ShardingOption, parts: int, global_batch: int
) -> Ints:
    """Rows at which an option cuts a table; those without a row at the end get none."""
    assert option.row_cut is not None
    edges = store_edges(table, parts)
    if edges is not None:
        return np.array(edges)
    parts = min(parts, table.rows)
    if not statistics.hot_first:
        return np.cumsum((0, *column_widths(table.rows, parts)))
    return statistics.even_cut(parts, option.row_cut, global_batch * statistics.lookups)


def num_row_parts(table: TableSpec, parts: int) -> int:
    """Into how many parts the rows of a table are cut where `parts` are wanted."""
    edges = store_edges(table, parts)
    return min(parts, table.rows) if edges is None else len(edges) - 1


def rotation(table: int, option: ShardingOption, width: int) -> int:
    """By how many workers the row parts of the table of this number are moved on in a block of `width`.

    Prepared data has hot rows first, so the first part of every table is the busiest. Golden sections spread
    the first parts of any number of tables evenly over the workers.
    """
    if width == 1 or option.row_cut is None:
        return 0
    return _turn(table, width)


def _turn(table: int, width: int) -> int:
    return int(table * _GOLDEN % 1.0 * width)


def largest_first(cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of rows between cuts in the order of an option's blocks: those with most rows first."""
    return sorted(pairwise(cuts), key=lambda rows: (rows[0] - rows[1], rows))


def option_counts(
    table: TableSpec,
    option: ShardingOption,
    statistics: TableStatistics,
    workload: Workload,
    width: int,
    world_size: int,
) -> ShardCounts:
    """Counts of the `width` shards that a block of an option has, or of one where they are replicas."""
    if option.kind == "data_parallel":
        whole = np.array([0.0, table.rows])
        return counts_between(table, statistics, workload, world_size, whole, replicated=True)
    cuts = np.array([0.0, table.rows])
    if option.row_cut is not None:
        cuts = row_cut(table, statistics, option, width, workload.global_batch).astype(np.float64)
        # Fewer rows than workers: those at the end get none, and are not asked.
        cuts = np.append(cuts, np.full(width + 1 - len(cuts), cuts[-1]))
    return counts_between(table, statistics, workload, world_size, cuts)


def counts_between(
    table: TableSpec,
    statistics: TableStatistics,
    workload: Workload,
    world_size: int,
    cuts: Floats,
    *,
    replicated: bool = False,
) -> ShardCounts:
    """Counts of the rows between consecutive `cuts`; every worker of a `replicated` table sees its own
    samples only."""
    ids = workload.global_batch * statistics.lookups / (world_size if replicated else 1)
    bags = workload.global_batch * len(table.features) / (world_size if replicated else 1)
    rows = np.diff(cuts)
    shard_ids = ids * np.diff(statistics.share_before(cuts))
    distinct = np.diff(statistics.distinct_before(cuts, ids))
    sent = 0.0 * shard_ids if replicated else shard_ids
    if workload.exchange.deduplicate:
        # Each sender names a row once.
        sent = np.minimum(sent, world_size * np.diff(statistics.distinct_before(cuts, ids / world_size)))
    return cuts[:-1], rows, shard_ids, distinct, sent, np.where(rows > 0, bags, 0.0)


def rotated(counts: ShardCounts, by: int) -> ShardCounts:
    """The counts of a block whose parts are moved on by so many workers."""
    if not by:
        return counts
    first, rows, ids, distinct, sent, bags = (np.roll(column, by) for column in counts)
    return first, rows, ids, distinct, sent, bags


def single_shard(counts: ShardCounts, position: int) -> ShardCounts:
    """The counts of one of several shards."""
    first, rows, ids, distinct, sent, bags = (column[position : position + 1] for column in counts)
    return first, rows, ids, distinct, sent, bags
