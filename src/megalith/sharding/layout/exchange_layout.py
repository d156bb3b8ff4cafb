"""`ExchangeLayout`: what each worker is sent, holds and returns under a plan.

Index arithmetic, done once, without torch. A node adds up inside itself what its workers hold of the rows of
`table_row` and `grid` tables; one of them, the relay, then sends the sum for a rank, so that the links
between nodes carry it once.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from megalith.core.schema import TableSpec, feature_order
from megalith.sharding.layout.output_columns import (
    elementary_columns,
    feature_columns,
    merged,
    replicated_ranges,
    sum_levels,
)
from megalith.sharding.layout.row_partitions import each_stream_once, id_stream, row_partitions
from megalith.sharding.layout.types import (
    ColumnRange,
    IdStream,
    LocalShard,
    MeanOutput,
    NodeLayout,
    RowPartition,
    SequencePiece,
    WorkerLayout,
)
from megalith.sharding.plan import Placement, ShardingPlan

SUMMED_IN_NODE = ("table_row", "grid")
"""Kinds of placement whose rows a node adds up before they leave it."""


class _PlacedShard(NamedTuple):
    """A shard on its worker."""

    local: LocalShard
    first_output: int
    """The first column of its table in the pooled output."""


@dataclass
class _PlacedTables:
    """What the placements of a plan come to, table by table."""

    shards: list[list[_PlacedShard]]
    """By worker."""
    row_partitions: dict[RowPartition, None] = field(default_factory=dict)
    replicated: list[tuple[TableSpec, int]] = field(default_factory=list)
    """Tables that every worker holds, and the first column of each in the pooled output."""
    mean_outputs: list[MeanOutput] = field(default_factory=list)

    def place(
        self,
        table: TableSpec,
        placement: Placement,
        features: Sequence[int],
        first_output: int,
        in_node: bool,
    ) -> None:
        """Adds a table; `features` are the numbers of its features, `in_node` whether nodes add it up."""
        if placement.kind == "data_parallel":
            self.replicated.append((table, first_output))
            return
        row_sharded = any(shard.num_rows < table.rows for shard in placement.shards)
        for shard in placement.shards:
            streams = tuple(
                id_stream(table, shard, feature) if row_sharded else IdStream(feature, None)
                for feature in features
            )
            local = LocalShard(table, shard, row_sharded, in_node, streams)
            self.shards[shard.worker].append(_PlacedShard(local, first_output))
        if row_sharded:
            self.row_partitions.update(dict.fromkeys(row_partitions(table, placement, features)))
            if table.pooling == "mean":
                self.mean_outputs += [
                    MeanOutput(feature, table.padding_index, first_output + number * table.dim, table.dim)
                    for number, feature in enumerate(features)
                ]


class ExchangeLayout:
    """The layout of a plan, for all workers at once.

    The sharded collection makes one, and every stage of the runtime reads its own part from it; the dry run
    makes one for machines that are not there.
    """

    def __init__(self, tables: Sequence[TableSpec], plan: ShardingPlan) -> None:
        self.features = feature_order(tables)
        self.world_size, self.workers_per_node = plan.world_size, plan.workers_per_node
        self.num_nodes = -(-plan.world_size // plan.workers_per_node)
        self.output_dim = sum(table.output_dim for table in tables)
        self.sequences = tuple(
            (table, feature) for table in tables if table.pooling == "none" for feature in table.features
        )
        """What is not pooled, in the order of outputs; the vectors of an id have one holder a column."""
        self.pooled_tables = tuple(table for table in tables if table.pooling != "none")
        placed = self._placed(tables, plan)
        self.replicated = tuple(table for table, _ in placed.replicated)
        """Tables that every worker holds."""
        self.mean_outputs = tuple(placed.mean_outputs)
        """Means whose sums arrive in parts."""
        self.row_partitions = each_stream_once(placed.row_partitions)
        self.workers, self.nodes = self._workers_and_nodes(placed.shards)
        self.replicated_columns = replicated_ranges(self.world_size + self.num_nodes, placed.replicated)
        self.sources = (
            *(worker.direct_columns for worker in self.workers),
            *(node.spans for node in self.nodes),
            self.replicated_columns,
        )
        """Workers, then nodes, then this rank's own replicated tables."""
        self.levels = sum_levels(columns for ranges in self.sources for columns in ranges)
        """How a rank puts its pooled output together: level 0 fills it, the others add, in worker order."""

    def node_of(self, worker: int) -> int:
        """The node of a worker."""
        return worker // self.workers_per_node

    def node_workers(self, node: int) -> range:
        """The workers of a node; the last node may have fewer than the others."""
        first = node * self.workers_per_node
        return range(first, min(first + self.workers_per_node, self.world_size))

    def relay(self, node: int, rank: int) -> int:
        """The worker that sends a node's sums to a rank: the one of the same number in its node."""
        workers = self.node_workers(node)
        return workers[rank % self.workers_per_node % len(workers)]

    def _placed(self, tables: Sequence[TableSpec], plan: ShardingPlan) -> _PlacedTables:
        placed = _PlacedTables([[] for _ in range(plan.world_size)])
        placements = {placement.table: placement for placement in plan.placements}
        numbers = {feature: number for number, feature in enumerate(self.features)}
        first_output = 0
        for table in tables:
            placement = placements[table.name]
            in_node = self.num_nodes > 1 and placement.kind in SUMMED_IN_NODE
            features = [numbers[feature] for feature in table.features]
            placed.place(table, placement, features, first_output, in_node)
            first_output += table.output_dim
        return placed

    def _workers_and_nodes(
        self, placed: Sequence[Sequence[_PlacedShard]]
    ) -> tuple[tuple[WorkerLayout, ...], tuple[NodeLayout, ...]]:
        ordered = [
            sorted(shards, key=lambda shard: (shard.local.table.pooling == "none", shard.local.in_node))
            for shards in placed
        ]
        summed: list[list[tuple[int, int]]] = [[] for _ in range(self.num_nodes)]
        for worker, shards in enumerate(ordered):
            for local, first_output in shards:
                if local.in_node:
                    summed[self.node_of(worker)] += feature_columns(local, first_output)
        node_columns = [elementary_columns(columns) for columns in summed]
        numbers = {(table.name, feature): number for number, (table, feature) in enumerate(self.sequences)}
        workers = tuple(
            _worker_layout(worker, shards, node_columns[self.node_of(worker)], _pieces(shards, numbers))
            for worker, shards in enumerate(ordered)
        )
        nodes = tuple(
            self._node_layout(node, columns, [workers[worker] for worker in self.node_workers(node)])
            for node, columns in enumerate(node_columns)
        )
        return workers, nodes

    def _node_layout(
        self, node: int, node_columns: Mapping[tuple[int, int], int], workers: Sequence[WorkerLayout]
    ) -> NodeLayout:
        parts = [
            columns._replace(source=number)
            for number, worker in enumerate(workers)
            for columns in worker.node_columns
        ]
        outwards = [
            ColumnRange(self.world_size + node, start, *columns) for columns, start in node_columns.items()
        ]
        return NodeLayout(tuple(width for _, width in node_columns), sum_levels(parts), merged(outwards))


def _worker_layout(
    worker: int,
    shards: Sequence[_PlacedShard],
    node_columns: Mapping[tuple[int, int], int],
    pieces: tuple[SequencePiece, ...],
) -> WorkerLayout:
    streams = dict.fromkeys(stream for local, _ in shards for stream in local.streams)
    direct, in_node, column, node_column = [], [], 0, 0
    elementary = list(node_columns)
    for local, first_output in shards:
        for first, width in feature_columns(local, first_output):
            if not local.in_node:
                direct.append(ColumnRange(worker, column, first, width))
                column += width
                continue
            begin = bisect.bisect_left(elementary, (first, 0))
            for left, part in elementary[begin : bisect.bisect_left(elementary, (first + width, 0))]:
                in_node.append(
                    ColumnRange(worker, node_column + left - first, node_columns[left, part], part)
                )
            node_column += width
    local_shards = tuple(local for local, _ in shards)
    return WorkerLayout(local_shards, tuple(streams), merged(direct), merged(in_node), pieces)


def _pieces(
    shards: Sequence[_PlacedShard], numbers: Mapping[tuple[str, str], int]
) -> tuple[SequencePiece, ...]:
    return tuple(
        SequencePiece(numbers[local.table.name, feature], stream, local.shard.columns)
        for local, _ in shards
        if local.table.pooling == "none"
        for feature, stream in zip(local.table.features, local.streams, strict=True)
    )
