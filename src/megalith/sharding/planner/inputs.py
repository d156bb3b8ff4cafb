"""Builds everything that a plan depends on, for `megalith plan` and for training alike.

    statistics = dataset_statistics(tables, dataset.folder, dataset.schema.categorical)
    inputs = plan_inputs(tables, cluster, Workload(global_batch=65536), statistics=statistics)

These take plain values, so that whoever has a recipe (`train.planning`) and whoever has a file of tables
(`table_file.py`) plan by the same rules: the same inputs give the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import FeatureSpec, TableSpec, check_tables
from megalith.cost.embedding import OPTIMIZER_VALUES
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.hardware.machine import this_machine
from megalith.sharding.planner.statistics import TableStatistics, default_statistics, from_dataset
from megalith.sharding.planner.topology import topology_of
from megalith.sharding.planner.types import MemoryPolicy, PlanInputs, Workload

LOCAL_CLUSTER = "these hosts"
"""What `local_cluster` is called."""
_USUAL_LENGTH = 8
"""Ids that a feature holds at most, where its schema does not say."""


def plan_inputs(
    tables: Sequence[TableSpec],
    cluster: Cluster,
    workload: Workload,
    *,
    world_size: int | None = None,
    workers_per_node: int | None = None,
    statistics: Mapping[str, TableStatistics] | None = None,
    memory: MemoryPolicy | None = None,
    adaptive_share: float = 1.0,
) -> PlanInputs:
    """Inputs for the first `world_size` workers of a cluster (all of them by default).

    `statistics` are by table; tables without get the defaults. `memory` says which tiers tables may take, all
    by default; `adaptive_share`, what adaptive tables take of their bytes as dense ones.
    """
    check_tables(tables)
    if workload.optimizer not in OPTIMIZER_VALUES:
        raise ConfigError(
            f"Unknown optimizer '{workload.optimizer}'; {nearest(workload.optimizer, [*OPTIMIZER_VALUES])}"
        )
    return PlanInputs(
        tables=tuple(tables),
        statistics=complete_statistics(tables, statistics),
        topology=topology_of(cluster, world_size, workers_per_node),
        workload=workload,
        memory=memory or MemoryPolicy(),
        adaptive_share=adaptive_share,
    )


def complete_statistics(
    tables: Sequence[TableSpec], known: Mapping[str, TableStatistics] | None
) -> dict[str, TableStatistics]:
    """Statistics of every table: those that are known, and defaults.

    A hash spreads the ids of dynamic tables, hot ones and all, over their partitions.
    """
    complete = {table.name: (known or {}).get(table.name) or default_statistics(table) for table in tables}
    for table in tables:
        if table.is_dynamic:
            complete[table.name] = replace(complete[table.name], hot_first=False)
    return complete


def dataset_statistics(
    tables: Sequence[TableSpec], folder: Path, features: Sequence[FeatureSpec]
) -> dict[str, TableStatistics]:
    """What is known of the lookups of tables on a prepared data set.

    Measured where `megalith data stats --save` has left its file in the folder. Else features take one id a
    sample, and those that hold several half of the most that their schema allows.
    """
    from megalith.data.stats import STATISTICS_FILE, read_statistics

    if (folder / STATISTICS_FILE).exists():
        return from_dataset(tables, read_statistics(folder))
    lengths = {
        feature.name: max(1.0, (feature.max_length or _USUAL_LENGTH) / 2)
        for feature in features
        if feature.multi_hot
    }
    return {table.name: default_statistics(table, lengths) for table in tables}


def local_cluster(world_size: int, workers_per_node: int) -> Cluster:
    """Machines like this one, as many as it takes for so many workers: where `megalith train` runs."""
    rack = catalog().cluster("cpu-rack")
    memory = rack.device.memory
    measured = this_machine().memory_bytes
    if measured is not None:
        memory = (replace(memory[0], bytes=measured), *memory[1:])
    levels = (replace(rack.levels[0], count=-(-world_size // workers_per_node)), *rack.levels[1:])
    return replace(rack, name=LOCAL_CLUSTER, device=replace(rack.device, memory=memory), levels=levels)
