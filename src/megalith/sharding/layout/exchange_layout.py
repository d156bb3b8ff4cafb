"""What each worker is sent, holds and returns under a plan: index arithmetic, done once, without torch.

A node adds up inside itself what its workers hold of the rows of `table_row` and `grid` tables; one of them,
the relay, then sends the sum for a rank, so that the links between nodes carry it once.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence

from megalith.core.schema import TableSpec, feature_order
from megalith.sharding.layout.types import (
    ColumnRange,
    LocalShard,
    MeanOutput,
    NodeLayout,
    RowPartition,
    SequencePiece,
    Stream,
    WorkerLayout,
)
from megalith.sharding.plan import Placement, Shard, ShardingPlan

IN_NODE = ("table_row", "grid")


class ExchangeLayout:
    """The layout of a plan, for all workers at once."""

    def __init__(self, tables: Sequence[TableSpec], plan: ShardingPlan) -> None:
        self.features = feature_order(tables)
        self.world_size, self.workers_per_node = plan.world_size, plan.workers_per_node
        self.num_nodes = -(-plan.world_size // plan.workers_per_node)
        self.output_dim = sum(table.output_dim for table in tables)
        placements = {placement.table: placement for placement in plan.placements}
        positions = {feature: position for position, feature in enumerate(self.features)}
        held: list[list[tuple[LocalShard, int]]] = [[] for _ in range(plan.world_size)]
        row_partitions: dict[RowPartition, None] = {}
        replicated: list[tuple[TableSpec, int]] = []
        mean_outputs: list[MeanOutput] = []
        self.sequences = tuple(
            (table, feature) for table in tables if table.pooling == "none" for feature in table.features
        )
        """What is not pooled, in the order of outputs; the vectors of an id have one holder a column."""
        self.pooled_tables = tuple(table for table in tables if table.pooling != "none")
        column = 0
        for table in tables:
            placement = placements[table.name]
            if placement.kind == "data_parallel":
                replicated.append((table, column))
            else:
                numbers = [positions[feature] for feature in table.features]
                cut = any(shard.num_rows < table.rows for shard in placement.shards)
                for shard, in_node in self._in_nodes(placement):
                    rows = shard.rows if cut else None
                    streams = tuple(Stream(number, rows) for number in numbers)
                    held[shard.worker].append((LocalShard(table, shard, cut, in_node, streams), column))
                if cut:
                    row_partitions.update(dict.fromkeys(_row_partitions(table, placement, numbers)))
                    if table.pooling == "mean":
                        mean_outputs += [
                            MeanOutput(number, table.padding_index, column + place * table.dim, table.dim)
                            for place, number in enumerate(numbers)
                        ]
            column += table.output_dim
        self.replicated = tuple(table for table, _ in replicated)
        self.mean_outputs = tuple(mean_outputs)
        """Means whose sums arrive in parts."""
        self.row_partitions = _each_stream_once(row_partitions)
        ordered = [
            sorted(some, key=lambda one: (one[0].table.pooling == "none", one[0].in_node)) for some in held
        ]
        numbers_of = {(table.name, feature): n for n, (table, feature) in enumerate(self.sequences)}
        node_slots: list[list[tuple[int, int]]] = [[] for _ in range(self.num_nodes)]
        for worker, some in enumerate(ordered):
            for local, output in some:
                if local.in_node:
                    node_slots[self.node_of(worker)] += _slots(local, output)
        places = [_elementary(slots) for slots in node_slots]
        self.workers = tuple(
            _worker_layout(worker, some, places[self.node_of(worker)], _pieces(some, numbers_of))
            for worker, some in enumerate(ordered)
        )
        self.nodes = tuple(self._node_layout(node, places[node]) for node in range(self.num_nodes))
        self.replicated_columns = _replicated_runs(self.world_size + self.num_nodes, replicated)
        self.sources = (
            *(worker.direct_columns for worker in self.workers),
            *(node.spans for node in self.nodes),
            self.replicated_columns,
        )
        """Workers, then nodes, then this rank's own replicated tables."""
        self.levels = _levels(span for spans in self.sources for span in spans)
        """How a rank puts its pooled output together: level 0 fills it, the others add, in worker order."""

    def node_of(self, worker: int) -> int:
        return worker // self.workers_per_node

    def node_workers(self, node: int) -> range:
        first = node * self.workers_per_node
        return range(first, min(first + self.workers_per_node, self.world_size))

    def relay(self, node: int, rank: int) -> int:
        """The worker that sends a node's sums to a rank: the one of the same place in its node."""
        workers = self.node_workers(node)
        return workers[rank % self.workers_per_node % len(workers)]

    def _in_nodes(self, placement: Placement) -> list[tuple[Shard, bool]]:
        """Every shard, and whether its node adds it up with others of the same columns."""
        several = self.num_nodes > 1 and placement.kind in IN_NODE
        return [(shard, several) for shard in placement.shards]

    def _node_layout(self, node: int, places: dict[tuple[int, int], int]) -> NodeLayout:
        local = {worker: number for number, worker in enumerate(self.node_workers(node))}
        spans = [
            span._replace(source=local[span.source])
            for worker in self.node_workers(node)
            for span in self.workers[worker].node_columns
        ]
        outwards = [ColumnRange(self.world_size + node, place, *one) for one, place in places.items()]
        return NodeLayout(tuple(width for _, width in places), _levels(spans), _merged(outwards))


def _row_partitions(table: TableSpec, placement: Placement, features: Sequence[int]) -> list[RowPartition]:
    by_columns: dict[tuple[int, int], list[Shard]] = {}
    for shard in placement.shards:
        by_columns.setdefault(shard.columns, []).append(shard)
    found = []
    for feature in features:
        for shards in by_columns.values():
            bounds = [0]
            streams: list[tuple[int, Stream] | None] = []
            for shard in sorted(shards, key=lambda one: one.rows):
                if shard.rows[0] > bounds[-1]:
                    bounds.append(shard.rows[0])
                    streams.append(None)
                bounds.append(shard.rows[1])
                streams.append((shard.worker, Stream(feature, shard.rows)))
            if bounds[-1] < table.rows:
                bounds.append(table.rows)
                streams.append(None)
            found.append(RowPartition(feature, tuple(bounds), tuple(streams)))
    return found


def _each_stream_once(row_partitions: Iterable[RowPartition]) -> tuple[RowPartition, ...]:
    """Two row_partitions may name the same stream of a worker; it is sent by the first."""
    seen: set[tuple[int, Stream]] = set()
    kept = []
    for partition in row_partitions:
        streams = tuple(None if one in seen else one for one in partition.streams)
        seen.update(one for one in streams if one is not None)
        if any(one is not None for one in streams):
            kept.append(partition._replace(streams=streams))
    return tuple(kept)


def _slots(local: LocalShard, output: int) -> list[tuple[int, int]]:
    """(first column, width) in the pooled output of each feature; the table's columns begin at `output`."""
    table, (left, right) = local.table, local.shard.columns
    if table.pooling == "none":
        return []
    return [(output + place * table.dim + left, right - left) for place in range(len(local.streams))]


def _elementary(slots: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Ranges of columns, cut wherever one begins or ends, and the place of each when they stand in a row."""
    slots = set(slots)
    cuts = sorted({edge for first, width in slots for edge in (first, first + width)})
    numbers = {edge: number for number, edge in enumerate(cuts)}
    covered = {n for first, width in slots for n in range(numbers[first], numbers[first + width])}
    widths = [(cuts[number], cuts[number + 1] - cuts[number]) for number in sorted(covered)]
    places = itertools.accumulate((width for _, width in widths), initial=0)
    return dict(zip(widths, places, strict=False))


def _worker_layout(
    worker: int,
    held: Sequence[tuple[LocalShard, int]],
    places: dict[tuple[int, int], int],
    pieces: tuple[SequencePiece, ...],
) -> WorkerLayout:
    streams = dict.fromkeys(stream for local, _ in held for stream in local.streams)
    direct, in_node, column, node_column = [], [], 0, 0
    cuts = list(places)
    for local, output in held:
        for first, width in _slots(local, output):
            if not local.in_node:
                direct.append(ColumnRange(worker, column, first, width))
                column += width
                continue
            begin = bisect.bisect_left(cuts, (first, 0))
            for left, part in cuts[begin : bisect.bisect_left(cuts, (first + width, 0))]:
                in_node.append(ColumnRange(worker, node_column + left - first, places[left, part], part))
            node_column += width
    local_shards = tuple(local for local, _ in held)
    return WorkerLayout(local_shards, tuple(streams), _merged(direct), _merged(in_node), pieces)


def _pieces(
    held: Sequence[tuple[LocalShard, int]], numbers: Mapping[tuple[str, str], int]
) -> tuple[SequencePiece, ...]:
    return tuple(
        SequencePiece(numbers[local.table.name, feature], stream, local.shard.columns)
        for local, _ in held
        if local.table.pooling == "none"
        for feature, stream in zip(local.table.features, local.streams, strict=True)
    )


def _replicated_runs(source: int, replicated: Sequence[tuple[TableSpec, int]]) -> tuple[ColumnRange, ...]:
    starts = itertools.accumulate((table.output_dim for table, _ in replicated), initial=0)
    spans = [
        ColumnRange(source, start, output, table.output_dim)
        for start, (table, output) in zip(starts, replicated, strict=False)
        if table.output_dim
    ]
    return _merged(spans)


def _merged(spans: Iterable[ColumnRange]) -> tuple[ColumnRange, ...]:
    """Runs that lie side by side at both ends become one."""
    merged: list[ColumnRange] = []
    for span in spans:
        last = merged[-1] if merged else None
        if (
            last
            and last.source == span.source
            and last.column + last.width == span.column
            and last.output + last.width == span.output
        ):
            merged[-1] = last._replace(width=last.width + span.width)
        else:
            merged.append(span)
    return tuple(merged)


def _levels(spans: Iterable[ColumnRange]) -> tuple[tuple[ColumnRange, ...], ...]:
    """Runs by how many sources come before them in the sum of their columns; a level has no column twice."""
    spans = sorted(spans)
    pieces: dict[tuple[int, int], list[ColumnRange]] = {}
    cuts = sorted({edge for span in spans for edge in (span.output, span.output + span.width)})
    numbers = {edge: number for number, edge in enumerate(cuts)}
    for span in spans:
        for number in range(numbers[span.output], numbers[span.output + span.width]):
            left, right = cuts[number], cuts[number + 1]
            piece = ColumnRange(span.source, span.column + left - span.output, left, right - left)
            pieces.setdefault((left, right), []).append(piece)
    levels: list[list[ColumnRange]] = []
    for columns in sorted(pieces):
        for level, piece in enumerate(pieces[columns]):
            if level == len(levels):
                levels.append([])
            levels[level].append(piece)
    return tuple(_merged(level) for level in levels)
