"""`row_wise_plan`: a plan that needs no planner, every table cut by rows into equal parts, one a worker."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from megalith.core.schema import TableSpec
from megalith.sharding.plan import Placement, Shard, ShardingPlan
from megalith.sharding.store_cuts import can_cut_rows, given_kind, store_edges


def row_wise_plan(tables: Sequence[TableSpec], world_size: int) -> ShardingPlan:
    """Equal parts of every table's rows on all workers.

    Tables whose rows cannot be cut, such as those with max pooling, lie on one worker each, in turn. Adaptive
    ones are cut at units of rows and dynamic ones at partitions of ids, so that parts are nearly equal.

    >>> table = TableSpec(name="t0", rows=1000, dim=8, features=("f0",))
    >>> [shard.rows for shard in row_wise_plan([table], world_size=2).placement("t0").shards]
    [(0, 500), (500, 1000)]
    """
    placements = []
    for number, table in enumerate(tables):
        columns = (0, table.dim)
        store = given_kind(table) or "dense"
        if not can_cut_rows(table):
            whole = Shard(worker=number % world_size, rows=(0, table.rows), columns=columns)
            placements.append(Placement(table=table.name, kind="table_wise", store=store, shards=(whole,)))
            continue
        edges = store_edges(table, world_size)
        if edges is None:
            edges = [table.rows * part // world_size for part in range(world_size + 1)]
        shards = tuple(
            Shard(worker=worker, rows=rows, columns=columns)
            for worker, rows in enumerate(itertools.pairwise(edges))
            if rows[0] < rows[1]
        )
        placements.append(Placement(table=table.name, kind="row_wise", store=store, shards=shards))
    return ShardingPlan(world_size=world_size, workers_per_node=world_size, placements=tuple(placements))
