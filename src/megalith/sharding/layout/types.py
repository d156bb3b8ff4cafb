"""What the layout of a plan is made of: value types, without torch.

IdStream       ids that travel to a worker: those of a feature, or those of them in a range of rows, or of the
               partitions that ids of a dynamic table are hashed into
LocalShard     a rectangle of a table on a worker, which is a table of its own there
SequencePiece  a feature's vectors, or some rows and columns of them, that a worker has for a sequence
source         whose vectors a sample's rank receives: a worker, or a node that has added up its workers
ColumnRange    columns that lie side by side both at a source and in the pooled output
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from megalith.core.schema import TableSpec
from megalith.sharding.plan import Shard


class IdStream(NamedTuple):
    """Ids that travel to a worker: those of a feature, or those of them in a range of rows or partitions."""

    feature: int
    """The feature's number in the order of features."""
    rows: tuple[int, int] | None
    """Only ids of these rows travel, counted from the first; None sends all as they are."""
    by_hash: bool = False
    """Whether `rows` are partitions that ids are hashed into, of a dynamic table: ids travel as they are."""

    @property
    def first_id(self) -> int:
        """What was subtracted from every id."""
        return 0 if self.rows is None or self.by_hash else self.rows[0]


class ColumnRange(NamedTuple):
    """Columns that lie side by side both at a source and in the pooled output."""

    source: int
    column: int
    """The first of the columns at the source."""
    output: int
    """The first of them in the pooled output."""
    width: int


class LocalShard(NamedTuple):
    """A rectangle of a table on a worker, which is a table of its own there."""

    table: TableSpec
    """The table that it is a part of."""
    shard: Shard
    row_sharded: bool
    """Whether rows of the table lie on several workers: then parts are sums, whatever the pooling."""
    in_node: bool
    """Whether the node adds the parts up before they leave it."""
    streams: tuple[IdStream, ...]

    @property
    def name(self) -> str:
        """Tells the rectangles of a table apart."""
        (first, last), (left, right) = self.shard.rows, self.shard.columns
        return f"{self.table.name}[{first}:{last},{left}:{right}]"

    def spec(self) -> TableSpec:
        """The rectangle as a table, whose features are named after streams."""
        store, ids = self.table.store, self.table.store_spec.ids
        if ids is not None:
            store = ids.model_copy(update={"bound": self.shard.num_rows})
        return TableSpec(
            name=self.name,
            rows=self.shard.num_rows,
            dim=self.shard.dim,
            features=tuple(_stream_name(stream) for stream in self.streams),
            pooling="sum" if self.row_sharded and self.table.pooling == "mean" else self.table.pooling,
            dtype=self.table.dtype,
            padding_index=self._padding(),
            store=store,
        )

    def _padding(self) -> int | None:
        """The padding id as it arrives, None where it does not."""
        padding, (first, last) = self.table.padding_index, self.shard.rows
        if padding is None or self.table.is_dynamic:
            return padding
        return padding - first if first <= padding < last else None


class RowPartition(NamedTuple):
    """A feature whose ids are shared out by row, and the streams that take them."""

    feature: int
    bounds: tuple[int, ...]
    """Rows where parts begin, and where the last one ends; or partitions that ids are hashed into."""
    streams: tuple[tuple[int, IdStream] | None, ...]
    """(worker, stream) of each part; None drops its ids."""
    by_hash: bool = False


class SequencePiece(NamedTuple):
    """What a worker looks up for a sequence: a vector for every id of a stream, or some columns of it."""

    sequence: int
    """The sequence's number in the order of tables and features."""
    stream: IdStream
    columns: tuple[int, int]
    """Of the table."""

    @property
    def width(self) -> int:
        """Columns of each vector."""
        return self.columns[1] - self.columns[0]


class MeanOutput(NamedTuple):
    """A mean over rows that lie on several workers: the sample's rank divides the sum."""

    feature: int
    padding: int | None
    """The id that the mean leaves out."""
    output: int
    """The first of its columns in the pooled output."""
    width: int


@dataclass(frozen=True)
class WorkerLayout:
    """What one worker holds, is sent and returns."""

    local_shards: tuple[LocalShard, ...]
    """Those that nodes add up stand behind the others, those of sequences behind all."""
    streams: tuple[IdStream, ...]
    direct_columns: tuple[ColumnRange, ...]
    """Columns that go straight to the samples' ranks; `output` counts in the pooled output."""
    node_columns: tuple[ColumnRange, ...]
    """Columns that the node adds up; `column` counts from the first of them, `output` in the node's sum."""
    pieces: tuple[SequencePiece, ...]
    """Of sequences, shard by shard, stream by stream."""

    @property
    def pooled_shards(self) -> tuple[LocalShard, ...]:
        """The shards whose vectors are pooled."""
        return tuple(local for local in self.local_shards if local.table.pooling != "none")

    @property
    def sequence_shards(self) -> tuple[LocalShard, ...]:
        """The shards that have a vector for every id."""
        return self.local_shards[len(self.pooled_shards) :]

    @property
    def num_pooled_streams(self) -> int:
        """Streams that are pooled stand first."""
        return len({stream for local in self.pooled_shards for stream in local.streams})

    @property
    def vector_widths(self) -> list[int]:
        """Of the direct columns, vector by vector."""
        return [local.shard.dim for local in self.pooled_shards if not local.in_node for _ in local.streams]

    @property
    def direct_width(self) -> int:
        """Columns that go straight to the samples' ranks."""
        return sum(columns.width for columns in self.direct_columns)

    @property
    def node_width(self) -> int:
        """Columns that the node adds up."""
        return sum(columns.width for columns in self.node_columns)


@dataclass(frozen=True)
class NodeLayout:
    """What a node adds up, level by level; `source` is the worker's number in the node."""

    vector_widths: tuple[int, ...]
    levels: tuple[tuple[ColumnRange, ...], ...]
    spans: tuple[ColumnRange, ...]
    """From the columns of the sum to the pooled output."""

    @property
    def width(self) -> int:
        """Columns of the node's sum."""
        return sum(self.vector_widths)


def _stream_name(stream: IdStream) -> str:
    if stream.rows is None:
        return str(stream.feature)
    return f"{stream.feature}{'#' if stream.by_hash else ''}[{stream.rows[0]}:{stream.rows[1]}]"
