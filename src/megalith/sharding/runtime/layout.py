"""What each worker is sent, holds and returns under a plan: index arithmetic, done once, without torch.

    stream      ids that travel to a worker: those of a feature, or those of them in a range of rows
    holding     a rectangle on a worker, which is a table of its own there
    piece       a feature's vectors, or some rows and columns of them, that a worker has for a sequence
    source      whose vectors a sample's rank receives: a worker, or a node that has added up its workers
    run         columns that lie side by side both at a source and in the pooled output

A node adds up inside itself what its workers hold of the rows of `table_row` and `grid` tables; one of them
then sends the sum for a rank, so that the links between nodes carry it once.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megalith.core.schema import TableSpec, feature_order
from megalith.sharding.plan import Placement, Shard, ShardingPlan

IN_NODE = ("table_row", "grid")


class Stream(NamedTuple):
    feature: int
    """Its number in the order of features."""
    rows: tuple[int, int] | None
    """Only ids of these rows travel, counted from the first; None sends all as they are."""


class Run(NamedTuple):
    source: int
    column: int
    """The first of the columns at the source."""
    output: int
    """The first of them in the pooled output."""
    width: int


class Holding(NamedTuple):
    table: TableSpec
    """The table that it is a part of."""
    shard: Shard
    cut: bool
    """Whether rows of the table lie on several workers: then parts are sums, whatever the pooling."""
    in_node: bool
    """Whether the node adds the parts up before they leave it."""
    streams: tuple[Stream, ...]

    @property
    def name(self) -> str:
        (first, last), (left, right) = self.shard.rows, self.shard.columns
        return f"{self.table.name}[{first}:{last},{left}:{right}]"

    def spec(self) -> TableSpec:
        """The rectangle as a table, whose features are named after streams."""
        padding, (first, last) = self.table.padding_index, self.shard.rows
        inside = padding is not None and first <= padding < last
        return TableSpec(
            name=self.name,
            rows=self.shard.num_rows,
            dim=self.shard.dim,
            features=tuple(_stream_name(stream) for stream in self.streams),
            pooling="sum" if self.cut and self.table.pooling == "mean" else self.table.pooling,
            dtype=self.table.dtype,
            padding_index=padding - first if inside and padding is not None else None,
        )


class Family(NamedTuple):
    """Streams that share out the ids of a feature by row."""

    feature: int
    bounds: tuple[int, ...]
    """Rows where parts begin, and where the last one ends."""
    streams: tuple[tuple[int, Stream] | None, ...]
    """(worker, stream) of each part; None drops its ids."""


class Piece(NamedTuple):
    """What a worker looks up for a sequence: a vector for every id of a stream, or some columns of it."""

    sequence: int
    """Its number in the order of tables and features."""
    stream: Stream
    columns: tuple[int, int]
    """Of the table."""

    @property
    def width(self) -> int:
        return self.columns[1] - self.columns[0]


class Divided(NamedTuple):
    """A mean over rows that lie on several workers: the sample's rank divides the sum."""

    feature: int
    padding: int | None
    output: int
    width: int


@dataclass(frozen=True)
class WorkerLayout:
    holdings: tuple[Holding, ...]
    """Those that nodes add up stand behind the others, those of sequences behind all."""
    streams: tuple[Stream, ...]
    direct_runs: tuple[Run, ...]
    """Columns that go straight to the samples' ranks; `output` counts in the pooled output."""
    node_runs: tuple[Run, ...]
    """Columns that the node adds up; `column` counts from the first of them, `output` in the node's sum."""
    pieces: tuple[Piece, ...]
    """Of sequences, holding by holding, stream by stream."""

    @property
    def pooled_holdings(self) -> tuple[Holding, ...]:
        return tuple(holding for holding in self.holdings if holding.table.pooling != "none")

    @property
    def sequence_holdings(self) -> tuple[Holding, ...]:
        return self.holdings[len(self.pooled_holdings) :]

    @property
    def num_pooled_streams(self) -> int:
        """Streams that are pooled stand first."""
        return len({stream for holding in self.pooled_holdings for stream in holding.streams})

    @property
    def vector_widths(self) -> list[int]:
        """Of the direct columns, vector by vector."""
        return [
            holding.shard.dim
            for holding in self.pooled_holdings
            if not holding.in_node
            for _ in holding.streams
        ]

    @property
    def direct_width(self) -> int:
        return sum(run.width for run in self.direct_runs)

    @property
    def node_width(self) -> int:
        return sum(run.width for run in self.node_runs)


@dataclass(frozen=True)
class NodeLayout:
    """What a node adds up, level by level; `source` is the worker's number in the node."""

    vector_widths: tuple[int, ...]
    levels: tuple[tuple[Run, ...], ...]
    runs: tuple[Run, ...]
    """From the columns of the sum to the pooled output."""

    @property
    def width(self) -> int:
        return sum(self.vector_widths)


class ExchangeLayout:
    """The layout of a plan, for all workers at once."""

    def __init__(self, tables: Sequence[TableSpec], plan: ShardingPlan) -> None:
        self.features = feature_order(tables)
        self.world_size, self.workers_per_node = plan.world_size, plan.workers_per_node
        self.num_nodes = -(-plan.world_size // plan.workers_per_node)
        self.output_dim = sum(table.output_dim for table in tables)
        placements = {placement.table: placement for placement in plan.placements}
        positions = {feature: position for position, feature in enumerate(self.features)}
        held: list[list[tuple[Holding, int]]] = [[] for _ in range(plan.world_size)]
        families: dict[Family, None] = {}
        replicated: list[tuple[TableSpec, int]] = []
        divided: list[Divided] = []
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
                    held[shard.worker].append((Holding(table, shard, cut, in_node, streams), column))
                if cut:
                    families.update(dict.fromkeys(_families(table, placement, numbers)))
                    if table.pooling == "mean":
                        divided += [
                            Divided(number, table.padding_index, column + place * table.dim, table.dim)
                            for place, number in enumerate(numbers)
                        ]
            column += table.output_dim
        self.replicated = tuple(table for table, _ in replicated)
        self.divided = tuple(divided)
        """Means whose sums arrive in parts."""
        self.families = _each_stream_once(families)
        ordered = [
            sorted(some, key=lambda one: (one[0].table.pooling == "none", one[0].in_node)) for some in held
        ]
        numbers_of = {(table.name, feature): n for n, (table, feature) in enumerate(self.sequences)}
        node_slots: list[list[tuple[int, int]]] = [[] for _ in range(self.num_nodes)]
        for worker, some in enumerate(ordered):
            for holding, output in some:
                if holding.in_node:
                    node_slots[self.node_of(worker)] += _slots(holding, output)
        places = [_elementary(slots) for slots in node_slots]
        self.workers = tuple(
            _worker_layout(worker, some, places[self.node_of(worker)], _pieces(some, numbers_of))
            for worker, some in enumerate(ordered)
        )
        self.nodes = tuple(self._node_layout(node, places[node]) for node in range(self.num_nodes))
        self.replicated_runs = _replicated_runs(self.world_size + self.num_nodes, replicated)
        self.sources = (
            *(worker.direct_runs for worker in self.workers),
            *(node.runs for node in self.nodes),
            self.replicated_runs,
        )
        """Workers, then nodes, then this rank's own replicated tables."""
        self.levels = _levels(run for runs in self.sources for run in runs)
        """How a rank puts its pooled output together: level 0 fills it, the others add, in worker order."""

    def node_of(self, worker: int) -> int:
        return worker // self.workers_per_node

    def node_workers(self, node: int) -> range:
        first = node * self.workers_per_node
        return range(first, min(first + self.workers_per_node, self.world_size))

    def speaker(self, node: int, rank: int) -> int:
        """The worker that sends a node's sums to a rank: the one of the same place in its node."""
        workers = self.node_workers(node)
        return workers[rank % self.workers_per_node % len(workers)]

    def _in_nodes(self, placement: Placement) -> list[tuple[Shard, bool]]:
        """Every shard, and whether its node adds it up with others of the same columns."""
        several = self.num_nodes > 1 and placement.kind in IN_NODE
        return [(shard, several) for shard in placement.shards]

    def _node_layout(self, node: int, places: dict[tuple[int, int], int]) -> NodeLayout:
        local = {worker: number for number, worker in enumerate(self.node_workers(node))}
        runs = [
            run._replace(source=local[run.source])
            for worker in self.node_workers(node)
            for run in self.workers[worker].node_runs
        ]
        outwards = [Run(self.world_size + node, place, *one) for one, place in places.items()]
        return NodeLayout(tuple(width for _, width in places), _levels(runs), _merged(outwards))


def _families(table: TableSpec, placement: Placement, features: Sequence[int]) -> list[Family]:
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
            found.append(Family(feature, tuple(bounds), tuple(streams)))
    return found


def _each_stream_once(families: Iterable[Family]) -> tuple[Family, ...]:
    """Two families may name the same stream of a worker; it is sent by the first."""
    seen: set[tuple[int, Stream]] = set()
    kept = []
    for family in families:
        streams = tuple(None if one in seen else one for one in family.streams)
        seen.update(one for one in streams if one is not None)
        if any(one is not None for one in streams):
            kept.append(family._replace(streams=streams))
    return tuple(kept)


def _slots(holding: Holding, output: int) -> list[tuple[int, int]]:
    """(first column, width) in the pooled output of each feature; the table's columns begin at `output`."""
    table, (left, right) = holding.table, holding.shard.columns
    if table.pooling == "none":
        return []
    return [(output + place * table.dim + left, right - left) for place in range(len(holding.streams))]


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
    held: Sequence[tuple[Holding, int]],
    places: dict[tuple[int, int], int],
    pieces: tuple[Piece, ...],
) -> WorkerLayout:
    streams = dict.fromkeys(stream for holding, _ in held for stream in holding.streams)
    direct, in_node, column, node_column = [], [], 0, 0
    cuts = list(places)
    for holding, output in held:
        for first, width in _slots(holding, output):
            if not holding.in_node:
                direct.append(Run(worker, column, first, width))
                column += width
                continue
            begin = bisect.bisect_left(cuts, (first, 0))
            for left, part in cuts[begin : bisect.bisect_left(cuts, (first + width, 0))]:
                in_node.append(Run(worker, node_column + left - first, places[left, part], part))
            node_column += width
    holdings = tuple(holding for holding, _ in held)
    return WorkerLayout(holdings, tuple(streams), _merged(direct), _merged(in_node), pieces)


def _pieces(held: Sequence[tuple[Holding, int]], numbers: Mapping[tuple[str, str], int]) -> tuple[Piece, ...]:
    return tuple(
        Piece(numbers[holding.table.name, feature], stream, holding.shard.columns)
        for holding, _ in held
        if holding.table.pooling == "none"
        for feature, stream in zip(holding.table.features, holding.streams, strict=True)
    )


def _replicated_runs(source: int, replicated: Sequence[tuple[TableSpec, int]]) -> tuple[Run, ...]:
    starts = itertools.accumulate((table.output_dim for table, _ in replicated), initial=0)
    runs = [
        Run(source, start, output, table.output_dim)
        for start, (table, output) in zip(starts, replicated, strict=False)
        if table.output_dim
    ]
    return _merged(runs)


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs that lie side by side at both ends become one."""
    merged: list[Run] = []
    for run in runs:
        last = merged[-1] if merged else None
        if (
            last
            and last.source == run.source
            and last.column + last.width == run.column
            and last.output + last.width == run.output
        ):
            merged[-1] = last._replace(width=last.width + run.width)
        else:
            merged.append(run)
    return tuple(merged)


def _levels(runs: Iterable[Run]) -> tuple[tuple[Run, ...], ...]:
    """Runs by how many sources come before them in the sum of their columns; a level has no column twice."""
    runs = sorted(runs)
    pieces: dict[tuple[int, int], list[Run]] = {}
    cuts = sorted({edge for run in runs for edge in (run.output, run.output + run.width)})
    numbers = {edge: number for number, edge in enumerate(cuts)}
    for run in runs:
        for number in range(numbers[run.output], numbers[run.output + run.width]):
            left, right = cuts[number], cuts[number + 1]
            piece = Run(run.source, run.column + left - run.output, left, right - left)
            pieces.setdefault((left, right), []).append(piece)
    levels: list[list[Run]] = []
    for columns in sorted(pieces):
        for level, piece in enumerate(pieces[columns]):
            if level == len(levels):
                levels.append([])
            levels[level].append(piece)
    return tuple(_merged(level) for level in levels)


def _stream_name(stream: Stream) -> str:
    return (
        str(stream.feature) if stream.rows is None else f"{stream.feature}[{stream.rows[0]}:{stream.rows[1]}]"
    )
