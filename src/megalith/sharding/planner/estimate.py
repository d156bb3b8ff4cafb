"""What each piece of a table costs the worker that gets it: seconds of four phases, bytes of every tier.

Counts follow from the batch, the mean pooling length and the table's hot rows; seconds and bytes from
`cost.embedding` on the worker's device and from the exchanges of `topology`. All pieces of all options are
described first and priced in one pass over arrays.

What every rank does for its own samples (sharing out the ids of cut rows, adding up parts of vectors) is laid
on those that hold the parts, evenly: exact where all workers hold one, right in the mean elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from megalith.core.schema import DTYPE_BYTES, TableSpec
from megalith.cost.embedding import (
    CACHE_SHARE,
    ROW_COUPLED,
    VECTOR_BYTES,
    coupled_update_bytes,
    lookup_bytes,
    row_traffic_bytes,
    state_bytes,
    tier_seconds,
    update_bytes,
)
from megalith.cost.operators import stream_seconds
from megalith.sharding.plan import ExchangeConfig
from megalith.sharding.planner.options import Way, column_widths
from megalith.sharding.planner.problem import NUM_PHASES, Floats, Ints, Problem
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Workers
from megalith.sharding.wire_format import (
    CODEC_BYTES,
    LENGTH_BYTES,
    ROW_NORM_BYTES,
    id_bytes,
    replicated_gradient_bytes,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a step is made of, besides the tables."""

    global_batch: int
    optimizer: str = "rowwise_adagrad"
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    pipelined: bool = False
    """Whether the next batch's ids travel while this one is computed."""


Counts = tuple[Floats, Floats, Floats, Floats, Floats]
"""Of shards: rows, ids, distinct rows, ids sent, bags."""


@dataclass
class Shards:
    """Descriptions of shards, run after run; shards of a run differ in their counts alone."""

    counts: list[Counts] = field(default_factory=list)
    facts: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    """Of each run: its length, table, columns of a shard, slices, route, tier and parts of the rows."""
    cached: list[float] = field(default_factory=list)
    """Of each run: the share of its rows that the first memory keeps."""
    size: int = 0

    def add(
        self,
        counts: Counts,
        table: int,
        dim: int,
        way: Way,
        parts: int,
    ) -> int:
        """Where the run begins."""
        start, length = self.size, len(counts[0])
        self.size += length
        self.counts.append(counts)
        self.facts.append((length, table, dim, way.columns, _ROUTES.get(way.kind, _FLAT), way.tier, parts))
        self.cached.append(way.cached)
        return start


_Known = dict[tuple[bool, float | None, int], Counts]
_FLAT, _HIERARCHICAL, _NODE_COLUMNS, _COPIED = range(4)
_ROUTES = {
    "table_row": _HIERARCHICAL,
    "grid": _HIERARCHICAL,
    "table_column": _NODE_COLUMNS,
    "data_parallel": _COPIED,
}


def build_problem(
    tables: Sequence[TableSpec],
    ways: Sequence[Sequence[Way]],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
) -> Problem:
    """Prices every way of every table."""
    shards = Shards()
    size, per_node = workers.world_size, workers.per_node
    spans = {"row_wise": size, "data_parallel": size, "table_wise": 1, "column_wise": 1}
    starts, counts, widths, owner = [], [], [], []
    for number, table in enumerate(tables):
        known: _Known = {}
        for way in ways[number]:
            width = 1 if way.parts else spans.get(way.kind, per_node)
            pieces = way.parts or width
            key = (way.kind == "data_parallel", way.row_cut, pieces if way.row_cut is not None else 1)
            if key not in known:
                known[key] = _counts(table, way, traffic[table.name], workload, pieces, size)
            parts = 1 if way.row_cut is None else min(pieces, table.rows)
            variants = _describe(shards, number, table, way, known[key], parts)
            starts.append([start for start, _ in variants])
            counts.append([count for _, count in variants])
            widths.append(width)
            owner.append(number)
    priced = price(shards, tables, traffic, workers, workload)
    start, count, width_of = np.array(starts), np.array(counts), np.array(widths)
    total, peak = _summaries(priced, start, count, width_of)
    peak[:, :NUM_PHASES] *= workers.alone
    capacity = np.array([tier.bytes for tier in workers.device.memory], dtype=np.float64)
    capacity *= CACHE_SHARE
    weights = np.ones(NUM_PHASES)
    weights[0] = 0.0 if workload.pipelined else 1.0
    return Problem(
        tables=tuple(tables),
        workers=workers,
        ways=tuple(way for some in ways for way in some),
        first=np.concatenate(([0], np.cumsum([len(some) for some in ways]))).astype(np.int64),
        table=np.array(owner, dtype=np.int64),
        width=width_of,
        counts=count,
        starts=start,
        shards=priced,
        total=total,
        peak=peak,
        capacity=capacity,
        weights=weights,
        latency_seconds=step_latency(tables, workers, workload),
        global_batch=workload.global_batch,
    )


def step_latency(tables: Sequence[TableSpec], workers: Workers, workload: Workload) -> float:
    """What every plan pays: collectives, and putting the vectors of each rank's samples into place."""
    collectives = 2 if workload.pipelined else 3
    columns = sum(len(table.features) * table.dim for table in tables if table.pooling != "none")
    placed = VECTOR_BYTES * columns * workload.global_batch / workers.world_size
    handled = workers.constants.piece_factor * placed
    # Every worker sends a row to every sample, whatever it holds: fp16 has a scale for each.
    codecs = (workload.exchange.forward, workload.exchange.backward)
    scales = sum(CODEC_BYTES[codec].row for codec in codecs) * workload.global_batch * bool(columns)
    return (
        collectives * workers.all_to_all.latency
        + scales * workers.all_to_all.slope
        + float(stream_seconds(workers.device, workers.constants, handled))
    )


def row_cut(table: TableSpec, traffic: TableStatistics, way: Way, parts: int, global_batch: int) -> Ints:
    """Rows at which a way cuts a table; those without a row at the end get none."""
    assert way.row_cut is not None
    parts = min(parts, table.rows)
    if not traffic.hot_first:
        return np.cumsum((0, *column_widths(table.rows, parts)))
    return traffic.even_cut(parts, way.row_cut, global_batch * traffic.lookups)


def largest_first(cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of rows between cuts as blocks stand for them: those with most rows first."""
    return sorted(pairwise(cuts), key=lambda rows: (rows[0] - rows[1], rows))


def _counts(
    table: TableSpec, way: Way, traffic: TableStatistics, workload: Workload, width: int, size: int
) -> Counts:
    """Of the workers that a block of a way spans."""
    if way.kind == "data_parallel":
        one = counts_of(table, traffic, workload, size, np.array([0.0, table.rows]), copied=True)
        return tuple(np.repeat(some, size) for some in one)  # type: ignore[return-value]
    cuts = np.array([0.0, table.rows])
    if way.row_cut is not None:
        cuts = row_cut(table, traffic, way, width, workload.global_batch).astype(np.float64)
        # Fewer rows than workers: those at the end get none, and are not asked.
        cuts = np.append(cuts, np.full(width + 1 - len(cuts), cuts[-1]))
    return counts_of(table, traffic, workload, size, cuts)


def counts_of(
    table: TableSpec,
    traffic: TableStatistics,
    workload: Workload,
    size: int,
    cuts: Floats,
    *,
    copied: bool = False,
) -> Counts:
    """Rows, ids, distinct rows, ids sent and bags between neighbouring `cuts` of the rows; of a table that is
    `copied` to all `size` workers each sees its own samples only."""
    ids = workload.global_batch * traffic.lookups / (size if copied else 1)
    bags = workload.global_batch * len(table.features) / (size if copied else 1)
    rows = np.diff(cuts)
    mine = ids * np.diff(traffic.share_before(cuts))
    distinct = np.diff(traffic.distinct_before(cuts, ids))
    sent = 0.0 * mine if copied else mine
    if workload.exchange.deduplicate:
        # Each sender names a row once.
        sent = np.minimum(sent, size * np.diff(traffic.distinct_before(cuts, ids / size)))
    return rows, mine, distinct, sent, np.where(rows > 0, bags, 0.0)


def _one(counts: Counts, place: int) -> Counts:
    rows, ids, distinct, sent, bags = (some[place : place + 1] for some in counts)
    return rows, ids, distinct, sent, bags


def _describe(
    shards: Shards,
    number: int,
    table: TableSpec,
    way: Way,
    counts: Counts,
    parts: int,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Start and number of blocks of both variants."""
    if way.parts:
        # Two parts may differ in all counts; more of them, of spread rows, only by a row.
        lengths = counts[0]
        large, small = int(np.argmax(lengths)), int(np.argmin(lengths))
        if large == small:
            large, small = 0, len(lengths) - 1
        count = (
            int((lengths == lengths[large]).sum()) if lengths[large] > lengths[small] else len(lengths) - 1
        )
        if len(lengths) == 2:
            count = 1
        begins = [shards.add(_one(counts, place), number, table.dim, way, parts) for place in (large, small)]
        return (begins[0], count), (begins[1], len(lengths) - count)
    narrow, wider = divmod(table.dim, way.columns)
    if way.kind == "table_column":
        # One block: slice after slice on the workers of a node.
        begins = [
            shards.add(counts, number, dim, way, parts) for dim in column_widths(table.dim, way.columns)
        ]
        return (begins[0], 1), (begins[0], 0)
    if not wider:
        begin = shards.add(counts, number, narrow, way, parts)
        return (begin, way.columns), (begin, 0)
    wide = shards.add(counts, number, narrow + 1, way, parts)
    return (wide, wider), (shards.add(counts, number, narrow, way, parts), way.columns - wider)


def price(
    shards: Shards,
    tables: Sequence[TableSpec],
    traffic: Mapping[str, TableStatistics],
    workers: Workers,
    workload: Workload,
) -> Floats:
    device, constants = workers.device, workers.constants
    rows, ids, distinct, sent, bags = (np.concatenate(part) for part in zip(*shards.counts, strict=True))
    facts = np.array(shards.facts, dtype=np.int64)
    table, dim, slices, route, tier, parts = np.repeat(facts[:, 1:], facts[:, 0], axis=0).T
    distinct = np.minimum(distinct, ids)
    element = np.array([DTYPE_BYTES[one.dtype] for one in tables], dtype=np.int64)[table]
    # A table that keeps sequences sends a vector for every id.
    sequence = np.array([one.pooling == "none" for one in tables])[table]
    vectors = np.where(sequence, ids, bags)
    state = np.asarray(state_bytes(workload.optimizer, dim) + 0 * dim, dtype=np.float64)
    copied = route == _COPIED

    second = stream_seconds(device, constants, 1.0)
    counts = (ids, distinct, vectors, dim, element)
    lookup = np.asarray(lookup_bytes(constants, *counts)) * second
    updated = distinct.copy()
    everyone = np.array(
        [
            float(
                traffic[one.name].distinct_before(
                    np.array([float(one.rows)]), workload.global_batch * traffic[one.name].lookups
                )[0]
            )
            for one in tables
        ]
    )
    # Everybody updates all rows that any worker touched, and makes and reads a dense gradient.
    updated[copied] = everyone[table[copied]]
    dense = np.where(copied, replicated_gradient_bytes(rows, dim), 0.0)
    moved = update_bytes(constants, np.maximum(ids, updated), updated, *counts[2:], state)
    marked = np.where(copied, constants.copied_id_bytes * ids, 0.0)
    update = (np.asarray(moved) + marked + constants.copied_factor * dense) * second
    # Parts of rows whose optimizer needs the whole row are updated outside the fused pass.
    coupled = (slices > 1) & (rows > 0) if workload.optimizer in ROW_COUPLED else np.zeros(len(rows), bool)
    if coupled.any():
        apart = np.asarray(coupled_update_bytes(constants, *counts)) * second + constants.coupled_seconds
        update = np.where(coupled, apart, update)
    slow = tier > 0
    if slow.any():
        # Rows outside the cache are fetched for the lookup and written back some time after the update.
        known: dict[tuple[int, float], float] = {}
        for key in {(fact[1], share) for fact, share in zip(shards.facts, shards.cached, strict=True)}:
            one = traffic[tables[key[0]].name]
            known[key] = 1.0 - _missed(one, key[1], workload.global_batch * one.lookups)
        served = [known[fact[1], share] for fact, share in zip(shards.facts, shards.cached, strict=True)]
        hot = np.repeat(served, facts[:, 0])
        missed = 2 * distinct * np.asarray(row_traffic_bytes(constants, dim, element) + state)
        for level in range(1, len(device.memory)):
            fetched = np.asarray(tier_seconds(device, constants, lookup / second, hot, missed, level))
            lookup = np.where(tier == level, np.maximum(fetched, lookup), lookup)

    arriving = id_bytes(tables) * sent + LENGTH_BYTES * bags
    entry = np.where(copied, 0.0, arriving * workers.all_to_all.slope)
    cut = (parts > 1) & (rows > 0)
    everything = np.array([workload.global_batch * traffic[one.name].lookups for one in tables])[table]
    entry += np.where(cut, constants.route_id_bytes * everything / (parts * slices) * second, 0.0)

    on_wire = np.zeros(len(rows))
    for codec in (workload.exchange.forward, workload.exchange.backward):
        each = CODEC_BYTES[codec]
        # A vector of a sequence is a row of its own; rows of pooled vectors are in `step_latency`.
        on_wire += vectors * (each.element * dim + each.vector + np.where(sequence, each.row, 0))
    flat = on_wire * workers.all_to_all.slope
    inside = on_wire * (workers.inside.slope + workers.across.slope / workers.per_node)
    exchange = np.where(route == _HIERARCHICAL, inside, flat)
    exchange = np.where(copied, dense * workers.all_reduce.slope, exchange)
    pieces = VECTOR_BYTES * vectors * dim * (parts - 1) / parts
    exchange += np.where(cut, constants.piece_factor * pieces * second, 0.0)
    # They add up one number of each touched row before the update.
    near = np.where(route == _NODE_COLUMNS, workers.inside.slope, workers.all_to_all.slope)
    exchange += np.where(coupled, 2 * ROW_NORM_BYTES * distinct * near, 0.0)

    held = rows * (dim * element + state)
    memory = np.zeros((len(rows), len(device.memory)))
    memory[:, 0] = np.repeat(shards.cached, facts[:, 0]) * held + dense
    for level in range(1, len(device.memory)):
        memory[:, level] = np.where(tier == level, held, 0.0)
    return np.column_stack((entry, lookup, exchange, update, memory))


def _missed(traffic: TableStatistics, cached: float, ids: float) -> float:
    """Share of the distinct rows of a batch that are not among the cached ones."""
    rows = traffic.rows[-1]
    distinct = traffic.distinct_by_rank(np.array([cached * rows, rows]), ids)
    return 1 - float(distinct[0] / distinct[1]) if distinct[1] else 0.0


def _summaries(priced: Floats, starts: Ints, counts: Ints, widths: Ints) -> tuple[Floats, Floats]:
    """Sum and largest worker of each option, by blocks of equal width."""
    total = np.zeros((len(starts), priced.shape[1]))
    peak = np.zeros_like(total)
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        for variant in range(2):
            places = starts[chosen, variant][:, None] + np.arange(width)
            block = priced[places]
            count = counts[chosen, variant][:, None]
            total[chosen] += count * block.sum(axis=1)
            peak[chosen] = np.maximum(peak[chosen], np.where(count > 0, block.max(axis=1), 0.0))
    return total, peak
