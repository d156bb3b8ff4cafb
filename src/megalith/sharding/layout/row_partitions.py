"""Which worker is sent which ids of a feature, where the rows of its table lie on several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from megalith.core.schema import TableSpec
from megalith.core.store_spec import ID_PARTITIONS, partitions_between
from megalith.sharding.layout.types import IdStream, RowPartition
from megalith.sharding.plan import Placement, Shard


def row_partitions(table: TableSpec, placement: Placement, features: Sequence[int]) -> list[RowPartition]:
    """The partitions of a table's rows, for each of its features and each range of columns."""
    by_columns: dict[tuple[int, int], list[Shard]] = {}
    for shard in placement.shards:
        by_columns.setdefault(shard.columns, []).append(shard)
    return [_row_partition(table, shards, feature) for feature in features for shards in by_columns.values()]


def id_stream(table: TableSpec, shard: Shard, feature: int) -> IdStream:
    """The ids of a feature that a part of a table's rows is sent."""
    if not table.is_dynamic:
        return IdStream(feature, shard.rows)
    partitions = partitions_between(table.rows, shard.rows)
    assert partitions is not None
    return IdStream(feature, partitions, by_hash=True)


def _row_partition(table: TableSpec, shards: Sequence[Shard], feature: int) -> RowPartition:
    """Shards of the same columns, in the order of rows; ids of rows between them go nowhere."""
    bounds = [0]
    streams: list[tuple[int, IdStream] | None] = []
    for shard in sorted(shards, key=lambda shard: shard.rows):
        stream = id_stream(table, shard, feature)
        assert stream.rows is not None
        if stream.rows[0] > bounds[-1]:
            bounds.append(stream.rows[0])
            streams.append(None)
        bounds.append(stream.rows[1])
        streams.append((shard.worker, stream))
    last = ID_PARTITIONS if table.is_dynamic else table.rows
    if bounds[-1] < last:
        bounds.append(last)
        streams.append(None)
    return RowPartition(feature, tuple(bounds), tuple(streams), table.is_dynamic)


def each_stream_once(partitions: Iterable[RowPartition]) -> tuple[RowPartition, ...]:
    """Two partitions may name the same stream of a worker; it is sent by the first."""
    seen: set[tuple[int, IdStream]] = set()
    kept = []
    for partition in partitions:
        streams = tuple(None if stream in seen else stream for stream in partition.streams)
        seen.update(stream for stream in streams if stream is not None)
        if any(stream is not None for stream in streams):
            kept.append(partition._replace(streams=streams))
    return tuple(kept)
