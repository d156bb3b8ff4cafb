"""The cost of a plan that is given: what the planner expects of any file, its own or written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from megalith.core.schema import TableSpec
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner.estimate.estimator import step_latency
from megalith.sharding.planner.estimate.pricing import price_shards
from megalith.sharding.planner.estimate.shard_counts import ShardList, counts_between
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.loads import extra_latency, phase_seconds
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.types import NUM_PHASES, PHASES, Floats, PlanInputs, ShardingOption, Workload


def predict_loads(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer: str = "rowwise_adagrad",
) -> Floats:
    """[workers, phases + tiers]: seconds of each phase and bytes of each tier, all rows in the first."""
    workload = Workload(global_batch, optimizer, plan.exchange)
    return _loads(_inputs_of(plan, tables, cluster, workload, statistics), plan)


def predict_step(
    tables: Sequence[TableSpec],
    plan: ShardingPlan,
    cluster: Cluster,
    *,
    global_batch: int,
    statistics: Mapping[str, TableStatistics] | None = None,
    optimizer: str = "rowwise_adagrad",
) -> dict[str, float]:
    """Seconds of the embedding part of a step, and of each phase at its slowest worker."""
    workload = Workload(global_batch, optimizer, plan.exchange)
    inputs = _inputs_of(plan, tables, cluster, workload, statistics)
    lasting = phase_seconds(inputs.topology, _loads(inputs, plan))
    phases = dict(zip(PHASES, lasting.tolist(), strict=True))
    latency = step_latency(inputs)
    latency += extra_latency(inputs.topology, {placement.kind for placement in plan.placements})
    return {"step_seconds": sum(phases.values()) + latency, "latency_seconds": latency, **phases}


def _inputs_of(
    plan: ShardingPlan,
    tables: Sequence[TableSpec],
    cluster: Cluster,
    workload: Workload,
    statistics: Mapping[str, TableStatistics] | None,
) -> PlanInputs:
    return plan_inputs(
        tables,
        cluster,
        workload,
        world_size=plan.world_size,
        workers_per_node=min(plan.workers_per_node, plan.world_size),
        statistics=statistics,
    )


def _loads(inputs: PlanInputs, plan: ShardingPlan) -> Floats:
    shards, owners = ShardList(), []
    for number, table in enumerate(inputs.tables):
        placement = plan.placement(table.name)
        option = ShardingOption(placement.kind, len({shard.columns for shard in placement.shards}))
        parts = len({shard.rows for shard in placement.shards})
        for shard in placement.shards:
            counts = counts_between(
                table,
                inputs.statistics[table.name],
                inputs.workload,
                plan.world_size,
                np.array(shard.rows, dtype=np.float64),
                replicated=placement.kind == "data_parallel",
            )
            shards.add(counts, number, shard.dim, option, parts)
            owners.append(shard.worker)
    loads = np.zeros((plan.world_size, NUM_PHASES + len(inputs.topology.device.memory)))
    if owners:
        np.add.at(loads, np.array(owners), price_shards(shards, inputs))
    return loads
