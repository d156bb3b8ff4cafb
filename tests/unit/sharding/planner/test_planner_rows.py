"""Plans of tables with more rows than one worker counts: cut over enough workers, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megalith.core.errors import PlanError
from megalith.core.schema import MAX_DENSE_ROWS, TableSpec
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ShardingPlan
from megalith.sharding.planner import SearchSettings, make_plan


def roomy() -> Cluster:
    """Workers on which memory is not what is short."""
    cluster = catalog().cluster("zionex")
    memory = tuple(replace(tier, bytes=2**50) for tier in cluster.device.memory[:1])
    return replace(cluster, device=replace(cluster.device, memory=memory))


def planned(rows: int, workers: int, pooling: str = "sum") -> ShardingPlan:
    tables = [
        TableSpec.model_validate(
            {"name": name, "rows": count, "dim": 8, "features": (name,), "pooling": pooling}
        )
        for name, count in (("users", rows), ("items", 1000))
    ]
    return make_plan(
        tables, roomy(), world_size=workers, global_batch=1024, search=SearchSettings(seconds=0.5)
    )


@pytest.mark.parametrize(("rows", "workers"), [(2**32, 2), (2**33, 4), (2**35, 16)])
def test_rows_are_cut_over_enough_workers(rows: int, workers: int) -> None:
    shards = planned(rows, workers).placement("users").shards
    assert max(shard.num_rows for shard in shards) <= MAX_DENSE_ROWS


@pytest.mark.parametrize(
    ("rows", "workers", "pooling"), [(2**32, 1, "sum"), (2**34, 2, "sum"), (2**33, 4, "max")]
)
def test_too_few_workers_are_refused(rows: int, workers: int, pooling: str) -> None:
    with pytest.raises(PlanError, match=r"Table 'users' has [\d,]+ rows on one worker"):
        planned(rows, workers, pooling)
