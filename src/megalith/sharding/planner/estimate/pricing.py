"""What shards cost: seconds of the four phases and bytes of every tier, all shards in one pass over arrays.

Seconds and bytes come from `cost.embedding` on the worker's device and from the exchanges of the topology.
What every rank does for its own samples (routing the ids of cut rows, adding up parts of vectors) is
charged to those that hold the parts, evenly: exact where all workers hold one, right in the mean elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megalith.core.schema import DTYPE_BYTES
from megalith.cost.embedding import (
    ROWWISE_OPTIMIZERS,
    VECTOR_BYTES,
    column_wise_update_bytes,
    lookup_bytes,
    row_traffic_bytes,
    state_bytes,
    tier_seconds,
    update_bytes,
)
from megalith.cost.operators import stream_seconds
from megalith.sharding.planner.estimate.cache_misses import missed_rows
from megalith.sharding.planner.estimate.shard_counts import HIERARCHICAL, NODE_COLUMNS, REPLICATED, ShardList
from megalith.sharding.planner.types import Flags, Floats, Ints, PlanInputs
from megalith.sharding.wire_format import (
    CODEC_BYTES,
    LENGTH_BYTES,
    ROW_NORM_BYTES,
    id_bytes,
    replicated_gradient_bytes,
)


@dataclass(frozen=True)
class _ShardColumns:
    """What is known of every shard, an array each."""

    first: Floats
    """The first of its rows."""
    rows: Floats
    ids: Floats
    distinct: Floats
    sent: Floats
    bags: Floats
    table: Ints
    dim: Ints
    slices: Ints
    route: Ints
    tier: Ints
    parts: Ints
    element: Ints
    """Bytes of a value."""
    sequence: Flags
    """Whether the table keeps sequences, which send a vector for every id."""
    vectors: Floats
    state: Floats
    """Bytes of a row's optimizer state."""
    column_sharded: Flags
    """Parts of rows whose optimizer needs the whole row: they are updated outside the fused pass."""

    @property
    def replicated(self) -> Flags:
        """Shards that are whole copies of their table."""
        return self.route == REPLICATED

    @property
    def cut(self) -> Flags:
        """Shards that hold some rows of their table."""
        return (self.parts > 1) & (self.rows > 0)

    @property
    def dense_gradient_bytes(self) -> Floats:
        """Of replicated tables, whose gradients are made dense and summed over all workers."""
        return np.where(self.replicated, replicated_gradient_bytes(self.rows, self.dim), 0.0)


def price_shards(shards: ShardList, inputs: PlanInputs) -> Floats:
    """[shards, phases + tiers]: seconds of every phase and bytes of every tier."""
    columns = _columns(shards, inputs)
    # Of a byte that is streamed through memory.
    byte_seconds = float(stream_seconds(inputs.topology.device, inputs.topology.constants, 1.0))
    lookup = _lookup_seconds(columns, inputs, byte_seconds)
    update = _update_seconds(columns, inputs, byte_seconds)
    if (columns.tier > 0).any():
        lookup = _behind_caches(shards, columns, inputs, lookup, byte_seconds)
    return np.column_stack(
        (
            _input_seconds(columns, inputs, byte_seconds),
            lookup,
            _exchange_seconds(columns, inputs, byte_seconds),
            update,
            _memory_bytes(shards, columns, inputs),
        )
    )


def _columns(shards: ShardList, inputs: PlanInputs) -> _ShardColumns:
    first, rows, ids, distinct, sent, bags = map(np.concatenate, zip(*shards.counts, strict=True))
    facts = np.array(shards.facts, dtype=np.int64)
    table, dim, slices, route, tier, parts = np.repeat(facts[:, 1:], facts[:, 0], axis=0).T
    sequence = np.array([spec.pooling == "none" for spec in inputs.tables])[table]
    sums_over_rows = inputs.workload.optimizer in ROWWISE_OPTIMIZERS
    return _ShardColumns(
        first=first,
        rows=rows,
        ids=ids,
        distinct=np.minimum(distinct, ids),
        sent=sent,
        bags=bags,
        table=table,
        dim=dim,
        slices=slices,
        route=route,
        tier=tier,
        parts=parts,
        element=np.array([DTYPE_BYTES[spec.dtype] for spec in inputs.tables], dtype=np.int64)[table],
        sequence=sequence,
        vectors=np.where(sequence, ids, bags),
        state=np.asarray(state_bytes(inputs.workload.optimizer, dim) + 0 * dim, dtype=np.float64),
        column_sharded=(slices > 1) & (rows > 0) if sums_over_rows else np.zeros(len(rows), bool),
    )


def _lookup_seconds(columns: _ShardColumns, inputs: PlanInputs, byte_seconds: float) -> Floats:
    """Rows are read and pooled."""
    counts = (columns.ids, columns.distinct, columns.vectors, columns.dim, columns.element)
    return np.asarray(lookup_bytes(inputs.topology.constants, *counts)) * byte_seconds


def _behind_caches(
    shards: ShardList, columns: _ShardColumns, inputs: PlanInputs, lookup: Floats, byte_seconds: float
) -> Floats:
    """Lookup seconds of rows on slower tiers: those outside the cache are fetched for the lookup and written
    back some time after the update."""
    device, constants = inputs.topology.device, inputs.topology.constants
    cached = np.repeat(shards.cached, [fact[0] for fact in shards.facts])
    behind = np.flatnonzero(columns.tier > 0)
    missing = np.zeros(len(columns.rows))
    order = behind[np.argsort(columns.table[behind], kind="stable")]
    for chosen in np.split(order, np.flatnonzero(np.diff(columns.table[order])) + 1):
        statistics = inputs.statistics[inputs.tables[columns.table[chosen[0]]].name]
        ids = inputs.workload.global_batch * statistics.lookups
        ranges = columns.first[chosen], columns.rows[chosen], cached[chosen]
        missing[chosen] = missed_rows(statistics, *ranges, ids)
    hot = 1.0 - np.minimum(missing / np.maximum(columns.distinct, 1e-30), 1.0)
    row = np.asarray(row_traffic_bytes(constants, columns.dim, columns.element) + columns.state)
    for level in range(1, len(device.memory)):
        # Read by blocks, written back in large appends.
        read = np.maximum(row, device.memory[level].block_bytes)
        missed = columns.distinct * (read + row)
        fetched = np.asarray(tier_seconds(device, constants, lookup / byte_seconds, hot, missed, level))
        lookup = np.where(columns.tier == level, np.maximum(fetched, lookup), lookup)
    return lookup


def _update_seconds(columns: _ShardColumns, inputs: PlanInputs, byte_seconds: float) -> Floats:
    """Gradients are added up and rows updated."""
    constants, replicated = inputs.topology.constants, columns.replicated
    counts = (columns.ids, columns.distinct, columns.vectors, columns.dim, columns.element)
    updated = columns.distinct.copy()
    # All workers update all rows that any of them touched, and make and read a dense gradient.
    updated[replicated] = _touched_rows(inputs)[columns.table[replicated]]
    moved = update_bytes(constants, np.maximum(columns.ids, updated), updated, *counts[2:], columns.state)
    marked = np.where(replicated, constants.copied_id_bytes * columns.ids, 0.0)
    dense = constants.copied_factor * columns.dense_gradient_bytes
    update = (np.asarray(moved) + marked + dense) * byte_seconds
    if columns.column_sharded.any():
        apart = np.asarray(column_wise_update_bytes(constants, *counts)) * byte_seconds
        update = np.where(columns.column_sharded, apart + constants.column_wise_seconds, update)
    return update


def _touched_rows(inputs: PlanInputs) -> Floats:
    """Distinct rows of each table that a batch touches."""
    touched = []
    for table in inputs.tables:
        statistics = inputs.statistics[table.name]
        ids = inputs.workload.global_batch * statistics.lookups
        touched.append(float(statistics.distinct_before(np.array([float(table.rows)]), ids)[0]))
    return np.array(touched)


def _input_seconds(columns: _ShardColumns, inputs: PlanInputs, byte_seconds: float) -> Floats:
    """Ids and lengths arrive at the workers that hold rows."""
    topology, batch = inputs.topology, inputs.workload.global_batch
    arriving = id_bytes(inputs.tables) * columns.sent + LENGTH_BYTES * columns.bags
    seconds = np.where(columns.replicated, 0.0, arriving * topology.all_to_all.slope)
    lookups = [batch * inputs.statistics[table.name].lookups for table in inputs.tables]
    routed = topology.constants.route_id_bytes * np.array(lookups)[columns.table]
    shares = routed / (columns.parts * columns.slices) * byte_seconds
    return seconds + np.where(columns.cut, shares, 0.0)


def _exchange_seconds(columns: _ShardColumns, inputs: PlanInputs, byte_seconds: float) -> Floats:
    """Pooled vectors go to their samples and gradients come back; dense gradients are summed."""
    topology, exchange = inputs.topology, inputs.workload.exchange
    sent = np.zeros(len(columns.rows))
    for codec in (exchange.forward, exchange.backward):
        codec_bytes = CODEC_BYTES[codec]
        # A vector of a sequence is a row of its own; rows of pooled vectors are in `step_latency`.
        row = np.where(columns.sequence, codec_bytes.row, 0)
        sent += columns.vectors * (codec_bytes.element * columns.dim + codec_bytes.vector + row)
    flat = sent * topology.all_to_all.slope
    hierarchical = sent * (topology.in_node.slope + topology.across_nodes.slope / topology.per_node)
    seconds = np.where(columns.route == HIERARCHICAL, hierarchical, flat)
    summed = columns.dense_gradient_bytes * topology.all_reduce.slope
    seconds = np.where(columns.replicated, summed, seconds)
    partial = VECTOR_BYTES * columns.vectors * columns.dim * (columns.parts - 1) / columns.parts
    added_up = topology.constants.piece_factor * partial * byte_seconds
    seconds += np.where(columns.cut, added_up, 0.0)
    # They add up one number of each touched row before the update.
    near = np.where(columns.route == NODE_COLUMNS, topology.in_node.slope, topology.all_to_all.slope)
    seconds += np.where(columns.column_sharded, 2 * ROW_NORM_BYTES * columns.distinct * near, 0.0)
    return seconds


def _memory_bytes(shards: ShardList, columns: _ShardColumns, inputs: PlanInputs) -> Floats:
    """[shards, tiers]: rows and their optimizer state, maps of ids, caches, dense gradients."""
    tiers = len(inputs.topology.device.memory)
    held = columns.rows * (columns.dim * columns.element + columns.state)
    held *= np.array([inputs.held_share(table) for table in inputs.tables])[columns.table]
    cached = np.repeat(shards.cached, [fact[0] for fact in shards.facts])
    memory = np.zeros((len(columns.rows), tiers))
    maps = np.array([inputs.map_bytes_per_row(table) for table in inputs.tables])[columns.table]
    memory[:, 0] = cached * held + columns.rows * maps + columns.dense_gradient_bytes
    for level in range(1, tiers):
        memory[:, level] = np.where(columns.tier == level, held, 0.0)
    return memory
