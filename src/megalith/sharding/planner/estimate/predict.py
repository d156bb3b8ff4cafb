"""The cost of a plan that is given: what the planner expects of any file, its own or written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from megalith.core.schema import TableSpec
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner.enumerate import Way
from megalith.sharding.planner.estimate.estimator import Shards, Workload, counts_of, price, step_latency
from megalith.sharding.planner.statistics import TableStatistics, default_statistics
from megalith.sharding.planner.topology import workers_of
from megalith.sharding.planner.types import NUM_PHASES, PHASES, Floats, extra_latency, phase_seconds


def predict_loads(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer_kind: str = "rowwise_adagrad",
) -> Floats:
    """[workers, phases + tiers]: seconds of each phase and bytes of each tier, all rows in the first."""
    per_node = min(plan.workers_per_node, plan.world_size)
    workers = workers_of(cluster, plan.world_size, per_node)
    workload = Workload(global_batch, optimizer_kind, plan.exchange)
    known = statistics or {}
    traffic = {table.name: known.get(table.name) or default_statistics(table) for table in tables}
    shards, owners = Shards(), []
    for number, table in enumerate(tables):
        placement = plan.placement(table.name)
        slices = len({shard.columns for shard in placement.shards})
        way = Way(placement.kind, slices)
        copied = placement.kind == "data_parallel"
        parts = len({shard.rows for shard in placement.shards})
        for shard in placement.shards:
            counts = counts_of(
                table,
                traffic[table.name],
                workload,
                plan.world_size,
                np.array(shard.rows, dtype=np.float64),
                copied=copied,
            )
            shards.add(counts, number, shard.dim, way, parts)
            owners.append(shard.worker)
    loads = np.zeros((plan.world_size, NUM_PHASES + len(workers.device.memory)))
    if owners:
        np.add.at(loads, np.array(owners), price(shards, tables, traffic, workers, workload))
    return loads


def predict_step(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer_kind: str = "rowwise_adagrad",
) -> dict[str, float]:
    """Seconds of the embedding part of a step, and of each phase at its slowest worker."""
    loads = predict_loads(
        tables,
        plan,
        cluster,
        global_batch=global_batch,
        statistics=statistics,
        optimizer_kind=optimizer_kind,
    )
    workers = workers_of(cluster, plan.world_size, min(plan.workers_per_node, plan.world_size))
    phases = dict(zip(PHASES, phase_seconds(workers, loads).tolist(), strict=True))
    latency = step_latency(tables, workers, Workload(global_batch, optimizer_kind, plan.exchange))
    latency += extra_latency(workers, {placement.kind for placement in plan.placements})
    return {"step_seconds": sum(phases.values()) + latency, "latency_seconds": latency, **phases}
