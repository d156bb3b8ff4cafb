"""What every worker of a plan looks up, holds, sends and receives in a step, as the statistics expect it.

Bytes follow from the layout, which the runtime reads too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import DTYPE_BYTES, TableSpec
from megalith.cost.embedding import state_bytes
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import Placement, ShardingPlan
from megalith.sharding.planner.types import PlanInputs
from megalith.sharding.validate.exchanged_bytes import SequenceVectors, in_node_bytes, vector_bytes
from megalith.sharding.wire_format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    TIME_BYTES,
    has_event_times,
    id_bytes,
    replicated_gradient_bytes,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WorkerLoad:
    """What one worker holds and does in a step."""

    worker: int
    lookups: float
    """Ids that it looks up."""
    memory_bytes: dict[str, float]
    """Tables, optimizer state, and vectors on their way, by tier."""
    sent_bytes: float
    received_bytes: float
    sent_outside_bytes: float
    """Of the sent ones, those that leave the node."""


@dataclass(frozen=True)
class StepLoads:
    """A step of all workers."""

    workers: tuple[WorkerLoad, ...]
    exchanged_bytes: dict[str, float]
    """All workers together, by what travels."""
    between: Floats
    """[workers, workers]: bytes from one to the other."""


def step_loads(inputs: PlanInputs, plan: ShardingPlan, layout: ExchangeLayout) -> StepLoads:
    """What every worker does in a step of a plan."""
    size, tiers = plan.world_size, [tier.name for tier in inputs.topology.device.memory]
    local = inputs.workload.global_batch / size
    counts = _ShardedCounts(inputs, plan, layout)
    lookups, memory = counts.lookups, counts.memory
    arriving = counts.arriving_id_bytes()
    arriving += [
        LENGTH_BYTES * len(worker.streams) * inputs.workload.global_batch for worker in layout.workers
    ]
    arriving += HEADER_BYTES * size
    if has_event_times(inputs.tables):
        arriving += TIME_BYTES * inputs.workload.global_batch
    summed = _add_replicated(inputs, layout, local, lookups, memory)
    _add_vectors(inputs, layout, local, counts.sequences, memory)

    between = {
        "ids": np.tile(arriving / size, (size, 1)),
        "vectors": vector_bytes(layout, plan.exchange.forward, local, counts.sequences),
        "gradients": vector_bytes(layout, plan.exchange.backward, local, counts.sequences).T.copy(),
    }
    inside = in_node_bytes(layout, local)
    between["sums in nodes"] = inside + inside.T
    for sent in between.values():
        np.fill_diagonal(sent, 0.0)
    total: Floats = np.sum(list(between.values()), axis=0)
    exchanged = {name: float(sent.sum()) for name, sent in between.items()}
    ring = 2 * summed * (size - 1) / size
    exchanged["replicated gradients"] = ring * size
    nodes = np.arange(size) // plan.workers_per_node
    outside = np.where(nodes[:, None] != nodes, total, 0.0).sum(axis=1)
    loads = [
        WorkerLoad(
            worker,
            float(lookups[worker]),
            dict(zip(tiers, memory[worker].tolist(), strict=True)),
            float(total[worker].sum() + ring),
            float(total[:, worker].sum() + ring),
            float(outside[worker]),
        )
        for worker in range(size)
    ]
    return StepLoads(tuple(loads), exchanged, total)


class _ShardedCounts:
    """Lookups, memory and ids of tables that are not replicated, table after table."""

    def __init__(self, inputs: PlanInputs, plan: ShardingPlan, layout: ExchangeLayout) -> None:
        size = plan.world_size
        self.inputs = inputs
        self.lookups = np.zeros(size)
        self.memory = np.zeros((size, len(inputs.topology.device.memory)))
        self.sequences: SequenceVectors = [[] for _ in range(size)]
        """Vectors of sequences, one for every id: how many a worker makes, and of which width."""
        self._positions = {feature: position for position, feature in enumerate(layout.features)}
        self._streams: list[NDArray[np.int64]] = []
        self._stream_ids: list[Floats] = []
        tiers = [tier.name for tier in inputs.topology.device.memory]
        placements = {placement.table: placement for placement in plan.placements}
        for table in inputs.tables:
            placement = placements[table.name]
            if placement.kind != "data_parallel":
                # A plan written by hand may name no memory, or that of other hardware: then it is the first.
                self._add(table, placement, tiers.index(placement.tier) if placement.tier in tiers else 0)

    def _add(self, table: TableSpec, placement: Placement, tier: int) -> None:
        statistics = self.inputs.statistics[table.name]
        cells = np.array(
            [(shard.worker, *shard.rows, *shard.columns) for shard in placement.shards], dtype=np.int64
        )
        worker, first, last, left, right = cells.T
        before = statistics.share_before(np.stack((first, last)).astype(np.float64))
        ids = self.inputs.workload.global_batch * statistics.lookups * (before[1] - before[0])
        np.add.at(self.lookups, worker, ids)
        dim = right - left
        if table.pooling == "none":
            for holder, vectors, width in zip(worker.tolist(), ids.tolist(), dim.tolist(), strict=True):
                self.sequences[holder].append((vectors, width))
        # All ids of a feature are one stream, whatever table reads it; those of some rows are another.
        cut = bool((last - first < table.rows).any())
        for feature in table.features:
            asked = np.array([[self._positions[feature]]]).repeat(len(cells), axis=0)
            self._streams.append(np.concatenate((asked, cells[:, :3] * (1, cut, cut)), axis=1))
            self._stream_ids.append(ids / len(table.features))
        row_bytes = dim * DTYPE_BYTES[table.dtype] + state_bytes(self.inputs.workload.optimizer, dim)
        held_bytes = (last - first) * row_bytes * self.inputs.held_share(table)
        np.add.at(self.memory[:, tier], worker, held_bytes)
        np.add.at(self.memory[:, 0], worker, (last - first) * self.inputs.map_bytes_per_row(table))
        if tier:
            np.add.at(self.memory[:, 0], worker, [float(shard.cache_bytes) for shard in placement.shards])

    def arriving_id_bytes(self) -> Floats:
        """Of every worker; a stream that several rectangles read is sent once."""
        arriving = np.zeros(len(self.lookups))
        if self._streams:
            distinct, chosen = np.unique(np.concatenate(self._streams), axis=0, return_index=True)
            sent = id_bytes(self.inputs.tables) * np.concatenate(self._stream_ids)[chosen]
            np.add.at(arriving, distinct[:, 1], sent)
        return arriving


def _add_replicated(
    inputs: PlanInputs, layout: ExchangeLayout, local: float, lookups: Floats, memory: Floats
) -> float:
    """Adds tables that every worker holds; returns the bytes of their dense gradients."""
    summed = 0.0
    for table in layout.replicated:
        lookups += local * inputs.statistics[table.name].lookups
        state = table.rows * float(state_bytes(inputs.workload.optimizer, table.dim))
        dense = float(replicated_gradient_bytes(table.rows, table.dim))
        memory[:, 0] += table.weight_bytes + state + dense
        summed += dense
    return summed


def _add_vectors(
    inputs: PlanInputs, layout: ExchangeLayout, local: float, sequences: SequenceVectors, memory: Floats
) -> None:
    """Adds vectors of all samples at the worker that makes them, and those of its own samples; gradients
    alike."""
    batch = inputs.workload.global_batch
    widths = np.array([worker.direct_width + worker.node_width for worker in layout.workers], np.float64)
    memory[:, 0] += 2 * 4 * (batch * widths + local * layout.output_dim)
    memory[:, 0] += [2 * 4 * sum(ids * width for ids, width in vectors) for vectors in sequences]
    for table in inputs.tables:
        if table.pooling == "none":
            memory[:, 0] += 2 * 4 * local * inputs.statistics[table.name].lookups * table.dim
