"""What each shard of an option costs the worker that gets it: seconds of four phases, bytes of every tier.

All shards of all options are described first (`shard_counts.py`) and priced in one pass over arrays
(`pricing.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from megalith.core.schema import TableSpec
from megalith.cost.embedding import VECTOR_BYTES, table_capacity
from megalith.cost.operators import stream_seconds
from megalith.sharding.planner.enumerate import column_widths, slice_widths, table_kind
from megalith.sharding.planner.estimate.pricing import price_shards
from megalith.sharding.planner.estimate.shard_counts import (
    RepeatedShards,
    ShardCounts,
    ShardList,
    num_row_parts,
    option_counts,
    rotated,
    rotation,
    single_shard,
)
from megalith.sharding.planner.topology import Topology
from megalith.sharding.planner.types import (
    NUM_PHASES,
    Estimator,
    Floats,
    Ints,
    PlacementProblem,
    PlanInputs,
    ShardingOption,
)
from megalith.sharding.wire_format import CODEC_BYTES


class CostEstimator(Estimator):
    """Prices options with the cost model of the topology's device and links."""

    def estimate(self, inputs: PlanInputs, options: Sequence[Sequence[ShardingOption]]) -> PlacementProblem:
        """Prices every option of every table."""
        shards = ShardList(replicas=inputs.topology.world_size)
        starts: list[list[int]] = []
        counts: list[list[int]] = []
        widths: list[int] = []
        owner: list[int] = []
        described: dict[Hashable, tuple[range, RepeatedShards]] = {}
        for number, table in enumerate(inputs.tables):
            key_of_table = (table_kind(inputs, table), id(options[number]))
            if key_of_table in described:
                mine, shards_before = described[key_of_table]
                moved = shards.repeat(shards_before, number)
                starts += [[start + moved for start in starts[option]] for option in mine]
                counts += [counts[option] for option in mine]
                widths += [widths[option] for option in mine]
                owner += [number] * len(mine)
                continue
            first, begin = len(starts), (len(shards.counts), shards.size)
            known: dict[tuple[bool, bool, float | None, int], ShardCounts] = {}
            for option in options[number]:
                width = _block_width(option, inputs.topology)
                pieces = option.parts or width
                key = (
                    option.kind == "data_parallel",
                    width > 1,
                    option.row_cut,
                    pieces if option.row_cut is not None else 1,
                )
                if key not in known:
                    counted = option_counts(
                        table,
                        option,
                        inputs.statistics[table.name],
                        inputs.workload,
                        pieces,
                        inputs.topology.world_size,
                    )
                    known[key] = rotated(counted, rotation(number, option, width))
                parts = 1 if option.row_cut is None else num_row_parts(table, pieces)
                variants = _add_blocks(shards, number, table, option, known[key], parts)
                starts.append([start for start, _ in variants])
                counts.append([count for _, count in variants])
                widths.append(width)
                owner.append(number)
            written = RepeatedShards(number, range(begin[0], len(shards.counts)), begin[1])
            described[key_of_table] = (range(first, len(starts)), written)
        return _problem(
            inputs,
            options,
            price_shards(shards, inputs)[shards.described()],
            np.array(starts),
            np.array(counts),
            np.array(widths),
            np.array(owner, dtype=np.int64),
        )


def _problem(
    inputs: PlanInputs,
    options: Sequence[Sequence[ShardingOption]],
    shards: Floats,
    starts: Ints,
    counts: Ints,
    widths: Ints,
    owner: Ints,
) -> PlacementProblem:
    topology = inputs.topology
    total, peak = _summaries(shards, starts, counts, widths)
    peak[:, :NUM_PHASES] *= topology.idle_peer_factor
    capacity = np.array(table_capacity(topology.device), dtype=np.float64)
    weights = np.ones(NUM_PHASES)
    weights[0] = 0.0 if inputs.workload.pipelined else 1.0
    return PlacementProblem(
        tables=inputs.tables,
        topology=topology,
        options=tuple(option for table_options in options for option in table_options),
        first=np.concatenate(([0], np.cumsum([len(table_options) for table_options in options]))).astype(
            np.int64
        ),
        table=owner,
        width=widths,
        counts=counts,
        starts=starts,
        shards=shards,
        total=total,
        peak=peak,
        capacity=capacity,
        weights=weights,
        latency_seconds=step_latency(inputs),
        global_batch=inputs.workload.global_batch,
    )


def step_latency(inputs: PlanInputs) -> float:
    """What every plan pays: collectives, and copying the vectors of each rank's samples to the output."""
    topology, workload = inputs.topology, inputs.workload
    collectives = 2 if workload.pipelined else 3
    columns = sum(len(table.features) * table.dim for table in inputs.tables if table.pooling != "none")
    copied = VECTOR_BYTES * columns * workload.global_batch / topology.world_size
    handled = topology.constants.piece_factor * copied
    # Every worker sends a row to every sample, whatever it holds: fp16 has a scale for each.
    codecs = (workload.exchange.forward, workload.exchange.backward)
    scales = sum(CODEC_BYTES[codec].row for codec in codecs) * workload.global_batch * bool(columns)
    return (
        collectives * topology.all_to_all.latency
        + scales * topology.all_to_all.slope
        + float(stream_seconds(topology.device, topology.constants, handled))
    )


def _block_width(option: ShardingOption, topology: Topology) -> int:
    """Workers that a block of an option spans: 1, those of a node, or all."""
    if option.parts or option.kind in ("table_wise", "column_wise"):
        return 1
    return topology.world_size if option.kind in ("row_wise", "data_parallel") else topology.per_node


def _add_blocks(
    shards: ShardList, number: int, table: TableSpec, option: ShardingOption, counts: ShardCounts, parts: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Describes an option's shards; returns start and number of blocks of both variants."""
    if option.parts:
        # Two parts may differ in all counts; more of them, of spread rows, only by a row.
        lengths = counts[1]
        large, small = int(np.argmax(lengths)), int(np.argmin(lengths))
        if large == small:
            large, small = 0, len(lengths) - 1
        count = (
            int((lengths == lengths[large]).sum()) if lengths[large] > lengths[small] else len(lengths) - 1
        )
        if len(lengths) == 2:
            count = 1
        begins = [
            shards.add(single_shard(counts, position), number, table.dim, option, parts)
            for position in (large, small)
        ]
        return (begins[0], count), (begins[1], len(lengths) - count)
    if option.kind == "table_column":
        # One block: slice after slice on the workers of a node.
        begins = [
            shards.add(counts, number, dim, option, parts) for dim in column_widths(table.dim, option.columns)
        ]
        return (begins[0], 1), (begins[0], 0)
    widths = slice_widths(table.dim, option)
    wide, wider = shards.add(counts, number, widths[0], option, parts), widths.count(widths[0])
    if wider == len(widths):
        return (wide, wider), (wide, 0)
    return (wide, wider), (shards.add(counts, number, widths[-1], option, parts), len(widths) - wider)


def _summaries(shards: Floats, starts: Ints, counts: Ints, widths: Ints) -> tuple[Floats, Floats]:
    """Sum and largest worker of each option, by blocks of equal width."""
    total = np.zeros((len(starts), shards.shape[1]))
    peak = np.zeros_like(total)
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        for variant in range(2):
            positions = starts[chosen, variant][:, None] + np.arange(width)
            block = shards[positions]
            count = counts[chosen, variant][:, None]
            total[chosen] += count * block.sum(axis=1)
            peak[chosen] = np.maximum(peak[chosen], np.where(count > 0, block.max(axis=1), 0.0))
    return total, peak
