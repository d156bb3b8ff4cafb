"""N ranks in one process, without their tables: does a plan deliver, does it fit, is it balanced?

    checked = dry_run(tables, plan, cluster, global_batch=65536)
    checked.balance["lookups"]          # of the most loaded worker over the mean

A batch is shared out to the workers as the runtime does it, and followed to the pooled output
(`delivery.py`); one rank then sends its part for real, over a fake process group of all N. Bytes follow from
the layout, which the runtime reads too; ids are those that the statistics expect of the whole batch.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from megalith.comm.context import CommContext
from megalith.comm.traffic import TrafficCounter
from megalith.core.errors import PlanError
from megalith.core.schema import DTYPE_BYTES, TableSpec, check_tables
from megalith.core.units import format_bytes
from megalith.cost.embedding import state_bytes
from megalith.hardware.cluster import Cluster
from megalith.sharding.delivery import check_delivery, generated_batch, most_samples
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner.options import CACHED_ROWS
from megalith.sharding.planner.statistics import TableStatistics, default_statistics
from megalith.sharding.planner.topology import Workers, workers_of
from megalith.sharding.runtime.input_dist.input_dist import InputDist
from megalith.sharding.wire_format import (
    FLOAT_BYTES,
    HEADER_BYTES,
    LENGTH_BYTES,
    has_wide_ids,
    id_bytes,
    replicated_gradient_bytes,
    row_bytes,
)

Floats = NDArray[np.float64]
Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


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
class DryRun:
    world_size: int
    workers_per_node: int
    num_tables: int
    global_batch: int
    samples_checked: int
    ids_checked: int
    device: str
    memory_capacity_bytes: dict[str, float]
    exchanged_bytes: dict[str, float]
    """All workers together, by what travels."""
    largest_link: dict[str, float]
    """Sender, receiver and bytes of the pair of workers that exchange most."""
    balance: dict[str, float]
    """Most loaded over mean: lookups, sent, received and memory bytes."""
    batch_lookups_balance: float
    """That of the lookups in the batch that was followed, noise and all."""
    first_rank_index_bytes: int
    """What rank 0 sent over the fake process group: ids of its part of the batch."""
    workers: tuple[WorkerLoad, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def dry_run(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer_kind: str = "rowwise_adagrad",
    batch: Batch | None = None,
) -> DryRun:
    """Checks the plan for all its workers; PlanError says what is wrong with it.

    `batch` is `values` and `offsets` of some samples; without it one is drawn from the statistics.
    """
    with _no_collector():
        return _dry_run(tables, plan, cluster, global_batch, statistics or {}, optimizer_kind, batch)


def _dry_run(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    global_batch: int,
    known: Mapping[str, TableStatistics],
    optimizer_kind: str,
    batch: Batch | None,
) -> DryRun:
    begin = time.perf_counter()
    check_tables(tables)
    plan.check(tables)
    workers = workers_of(cluster, plan.world_size, min(plan.workers_per_node, plan.world_size))
    if global_batch < plan.world_size:
        raise PlanError(
            f"A batch of {global_batch} samples leaves some of {plan.world_size} workers without any; take a "
            f"batch of {plan.world_size} or more."
        )
    traffic = {table.name: known.get(table.name) or default_statistics(table) for table in tables}
    layout = ExchangeLayout(tables, plan)
    most = min(most_samples(layout), global_batch)
    values, offsets = (
        generated_batch(tables, traffic, most)
        if batch is None
        else _first_samples(*batch, len(layout.features), most)
    )
    looked_up = check_delivery(tables, layout, values, offsets)
    samples = (len(offsets) - 1) // len(layout.features)
    replicated = _replicated_ids(layout, values, offsets)
    loads, exchanged, between = _loads(tables, plan, layout, traffic, global_batch, optimizer_kind, workers)
    _check_memory(loads, workers)
    sender, receiver = np.unravel_index(int(between.argmax()), between.shape)
    first = [
        np.array([load.lookups for load in loads]),
        np.array([load.sent_bytes for load in loads]),
        np.array([load.received_bytes for load in loads]),
        np.array([sum(load.memory_bytes.values()) for load in loads]),
    ]
    return DryRun(
        world_size=plan.world_size,
        workers_per_node=plan.workers_per_node,
        num_tables=len(tables),
        global_batch=global_batch,
        samples_checked=samples,
        ids_checked=len(values),
        device=workers.device.name,
        memory_capacity_bytes={tier.name: float(tier.bytes) for tier in workers.device.memory},
        exchanged_bytes=exchanged,
        largest_link={"from": int(sender), "to": int(receiver), "bytes": float(between.max())},
        balance=dict(
            zip(("lookups", "sent_bytes", "received_bytes", "memory_bytes"), map(_ratio, first), strict=True)
        ),
        batch_lookups_balance=_ratio(looked_up + replicated / plan.world_size),
        first_rank_index_bytes=_send_as_first(layout, values, offsets, samples, tables),
        workers=tuple(loads),
        seconds=time.perf_counter() - begin,
    )


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of small objects are made and none of them in a circle: looking for circles would take a third
    of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def fake_ranks(world_size: int) -> Iterator[dist.ProcessGroup]:
    """A process group of so many ranks of which this process is the first; its collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise PlanError("A dry run needs a process of its own; start it without torchrun.")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


def _send_as_first(
    layout: ExchangeLayout, values: Any, offsets: Any, samples: int, tables: Sequence[TableSpec]
) -> int:
    """Bytes that rank 0 sends of its part of a batch, as the runtime counts them."""
    if layout.world_size == 1:
        return 0
    own = max(1, samples // layout.world_size)
    part = _first_samples(values, offsets, len(layout.features), own)
    traffic = TrafficCounter()
    with fake_ranks(layout.world_size) as group:
        exchange = InputDist(
            layout, 0, CommContext.over(group, traffic), wide_ids=has_wide_ids(tables), deduplicate=False
        )
        exchange.send(torch.from_numpy(part[0]), torch.from_numpy(part[1]))
    return traffic.total_bytes


def _loads(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    layout: ExchangeLayout,
    traffic: Mapping[str, TableStatistics],
    global_batch: int,
    optimizer: str,
    workers: Workers,
) -> tuple[list[WorkerLoad], dict[str, float], Floats]:
    size, tiers = plan.world_size, [tier.name for tier in workers.device.memory]
    local = global_batch / size
    lookups = np.zeros(size)
    arriving = np.zeros(size)
    memory = np.zeros((size, len(tiers)))
    placed = {
        one["table"]: (tiers.index(one["tier"]), float(one.get("cached_rows", CACHED_ROWS[0])))
        for one in plan.estimate.get("tables", ())
        if one["tier"] in tiers
    }
    each_id = id_bytes(tables)
    # Vectors of sequences, one for every id: how many a worker makes, and of which width.
    sequences: list[list[tuple[float, int]]] = [[] for _ in range(size)]
    positions = {feature: position for position, feature in enumerate(layout.features)}
    placements = {placement.table: placement for placement in plan.placements}
    streams: list[NDArray[np.int64]] = []
    stream_ids: list[Floats] = []
    for table in tables:
        placement, statistics = placements[table.name], traffic[table.name]
        if placement.kind == "data_parallel":
            continue
        cells = np.array([(one.worker, *one.rows, *one.columns) for one in placement.shards], dtype=np.int64)
        worker, first, last, left, right = cells.T
        before = statistics.share_before(np.stack((first, last)).astype(np.float64))
        ids = global_batch * statistics.lookups * (before[1] - before[0])
        np.add.at(lookups, worker, ids)
        dim = right - left
        if table.pooling == "none":
            for holder, vectors, width in zip(worker.tolist(), ids.tolist(), dim.tolist(), strict=True):
                sequences[holder].append((vectors, width))
        # All ids of a feature are one stream, whatever table reads it; those of some rows are another.
        cut = bool((last - first < table.rows).any())
        for feature in table.features:
            asked = np.array([[positions[feature]]]).repeat(len(cells), axis=0)
            streams.append(np.concatenate((asked, cells[:, :3] * (1, cut, cut)), axis=1))
            stream_ids.append(ids / len(table.features))
        tier, cached = placed.get(table.name, (0, 1.0))
        held_bytes = (last - first) * (dim * DTYPE_BYTES[table.dtype] + state_bytes(optimizer, dim))
        np.add.at(memory[:, tier], worker, held_bytes)
        if tier:
            np.add.at(memory[:, 0], worker, cached * held_bytes)
    if streams:
        # A stream that several rectangles read is sent once.
        distinct, chosen = np.unique(np.concatenate(streams), axis=0, return_index=True)
        np.add.at(arriving, distinct[:, 1], each_id * np.concatenate(stream_ids)[chosen])
    arriving += [LENGTH_BYTES * len(held.streams) * global_batch for held in layout.workers]
    arriving += HEADER_BYTES * size
    summed = 0.0
    for table in layout.replicated:
        lookups += local * traffic[table.name].lookups
        state = table.rows * float(state_bytes(optimizer, table.dim))
        dense = float(replicated_gradient_bytes(table.rows, table.dim))
        memory[:, 0] += table.weight_bytes + state + dense
        summed += dense
    # Vectors of all samples at the worker that makes them, and those of its own samples; gradients alike.
    widths = np.array([held.direct_width + held.node_width for held in layout.workers], dtype=np.float64)
    memory[:, 0] += 2 * 4 * (global_batch * widths + local * layout.output_dim)
    memory[:, 0] += [2 * 4 * sum(ids * width for ids, width in some) for some in sequences]
    for table in tables:
        if table.pooling == "none":
            memory[:, 0] += 2 * 4 * local * traffic[table.name].lookups * table.dim

    between = {
        "ids": np.tile(arriving / size, (size, 1)),
        "vectors": _vectors(layout, plan.exchange.forward, local, sequences),
        "gradients": _vectors(layout, plan.exchange.backward, local, sequences).T.copy(),
    }
    inside = _in_nodes(layout, local)
    between["sums in nodes"] = inside + inside.T
    for one in between.values():
        np.fill_diagonal(one, 0.0)
    total: Floats = np.sum(list(between.values()), axis=0)
    exchanged = {name: float(one.sum()) for name, one in between.items()}
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
    return loads, exchanged, total


def _vectors(
    layout: ExchangeLayout, codec: Any, local: float, sequences: Sequence[Sequence[tuple[float, int]]]
) -> Floats:
    """[workers, ranks]: bytes of vectors that a worker sends to a rank."""
    size = layout.world_size
    direct = np.array([row_bytes(codec, held.vector_widths) for held in layout.workers])
    sent = np.repeat(direct[:, None] * local, size, axis=1)
    more = [sum(ids * row_bytes(codec, [width]) for ids, width in some) for some in sequences]
    sent += np.array(more, dtype=np.float64)[:, None] / size
    for node, summed in enumerate(layout.nodes):
        if summed.width:
            row = row_bytes(codec, summed.vector_widths)
            for rank in range(size):
                sent[layout.relay(node, rank), rank] += row * local
    return sent


def _in_nodes(layout: ExchangeLayout, local: float) -> Floats:
    """[workers, workers]: FP32 bytes that go to the worker which adds them up."""
    size = layout.world_size
    sent = np.zeros((size, size))
    for node, summed in enumerate(layout.nodes):
        if summed.width:
            spoken = np.bincount([layout.relay(node, rank) for rank in range(size)], minlength=size)
            for worker in layout.node_workers(node):
                sent[worker] += FLOAT_BYTES * layout.workers[worker].node_width * spoken * local
    return sent


def _check_memory(loads: Sequence[WorkerLoad], workers: Workers) -> None:
    for tier in workers.device.memory:
        fullest = max(loads, key=lambda load: load.memory_bytes[tier.name])
        needed = fullest.memory_bytes[tier.name]
        if needed > tier.bytes:
            raise PlanError(
                f"Worker {fullest.worker} needs {format_bytes(needed)} of {tier.name} and a "
                f"{workers.device.name} has {format_bytes(tier.bytes)}, {format_bytes(needed - tier.bytes)} "
                "too much; make the plan again for this hardware with `megalith plan`, or take more workers."
            )


def _replicated_ids(layout: ExchangeLayout, values: Any, offsets: Any) -> float:
    """Ids of a batch that are looked up where their samples are."""
    features = {feature: place for place, feature in enumerate(layout.features)}
    edges = offsets[:: (len(offsets) - 1) // len(features)]
    places = [features[name] for table in layout.replicated for name in table.features]
    return float(sum(edges[place + 1] - edges[place] for place in places))


def _first_samples(values: Any, offsets: Any, features: int, samples: int) -> Batch:
    """The first samples of a batch."""
    batch = (len(offsets) - 1) // features
    if batch <= samples:
        return values, offsets
    lengths = np.diff(offsets).reshape(features, batch)[:, :samples]
    starts = offsets[:-1].reshape(features, batch)[:, 0]
    pieces = [values[start : start + taken] for start, taken in zip(starts, lengths.sum(axis=1), strict=True)]
    return np.concatenate(pieces), np.concatenate(([0], np.cumsum(lengths)))


def _ratio(loads: NDArray[Any]) -> float:
    mean = float(loads.mean())
    return float(loads.max()) / mean if mean else 1.0
