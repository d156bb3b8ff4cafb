"""Layouts of plans: every id and every column arrives exactly once, for any number of workers."""

import subprocess
import sys

import pytest

import megalith as mg
from megalith.sharding.layout.exchange_layout import ExchangeLayout
from megalith.sharding.layout.types import IdStream
from megalith.sharding.plan import Placement, Shard, ShardingPlan


def cells(rows, columns, workers):
    return tuple(
        Shard(worker=worker, rows=r, columns=c)
        for worker, (r, c) in zip(workers, [(r, c) for c in columns for r in rows], strict=True)
    )


def test_adjacent_columns_on_one_worker_are_one_range():
    tables = [mg.TableSpec(name=f"t{n}", rows=4, dim=8, features=(f"f{n}",)) for n in range(4)]
    workers = (0, 0, 1, 1)
    plan = ShardingPlan(
        world_size=2,
        workers_per_node=2,
        placements=tuple(
            Placement(table=t.name, kind="table_wise", shards=cells([(0, 4)], [(0, 8)], [w]))
            for t, w in zip(tables, workers, strict=True)
        ),
    )
    layout = ExchangeLayout(tables, plan)
    assert [[tuple(columns) for columns in level] for level in layout.levels] == [
        [(0, 0, 0, 16), (1, 0, 16, 16)]
    ]
    assert layout.workers[1].streams == (IdStream(2, None), IdStream(3, None))


def test_parts_of_rows_are_added_in_the_order_of_workers():
    table = mg.TableSpec(name="t", rows=9, dim=4, features=("f", "g"), pooling="mean", padding_index=7)
    shards = cells([(0, 3), (3, 6), (6, 9)], [(0, 4)], [2, 0, 1])
    plan = ShardingPlan(
        world_size=3,
        workers_per_node=3,
        placements=(Placement(table="t", kind="row_wise", shards=shards),),
    )
    layout = ExchangeLayout([table], plan)
    assert [[columns.source for columns in level] for level in layout.levels] == [[0], [1], [2]]
    assert [mean.output for mean in layout.mean_outputs] == [0, 4]
    held = layout.workers[1].local_shards[0].spec()
    assert (held.name, held.pooling, held.padding_index) == ("t[6:9,0:4]", "sum", 1)
    assert layout.workers[2].local_shards[0].spec().padding_index is None


def test_sums_of_a_node_leave_it_once_for_each_rank():
    table = mg.TableSpec(name="t", rows=8, dim=4, features=("f",))
    shards = cells([(0, 4), (4, 8)], [(0, 4)], [2, 3])
    plan = ShardingPlan(
        world_size=5,
        workers_per_node=2,
        placements=(Placement(table="t", kind="table_row", shards=shards),),
    )
    layout = ExchangeLayout([table], plan)
    assert [node.width for node in layout.nodes] == [0, 4, 0]
    assert [layout.relay(1, rank) for rank in range(5)] == [2, 3, 2, 3, 2]
    assert [layout.relay(2, rank) for rank in range(5)] == [4, 4, 4, 4, 4]
    # In the pooled output a node is one source, whatever number of workers it added up.
    assert [[columns.source for columns in level] for level in layout.levels] == [[5 + 1]]
    assert len(layout.nodes[1].levels) == 2


def test_a_thousand_workers_get_every_column_once():
    world_size, per_node = 1024, 8
    tables, placements = [], []
    for number in range(1000):
        table = mg.TableSpec(name=f"t{number}", rows=10_000, dim=64, features=(f"f{number}",))
        node = number % (world_size // per_node)
        inside = [node * per_node + n for n in range(per_node)]
        rows = [(10_000 * n // per_node, 10_000 * (n + 1) // per_node) for n in range(per_node)]
        tables.append(table)
        placements.append(
            Placement(table=table.name, kind="table_row", shards=cells(rows, [(0, 64)], inside))
        )
    plan = ShardingPlan(world_size=world_size, workers_per_node=per_node, placements=tuple(placements))
    layout = ExchangeLayout(tables, plan)
    assert sum(columns.width for level in layout.levels for columns in level) == layout.output_dim


@pytest.mark.parametrize("module", ["layout.exchange_layout", "wire_format", "planner"])
def test_layouts_do_not_import_torch(module):
    code = f"import sys, megalith.sharding.{module}; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
