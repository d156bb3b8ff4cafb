"""Plans without a planner: every row once, in equal parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import megalith as mg
from megalith.core.errors import PlanError
from megalith.core.store_spec import partitions_between
from megalith.ops.ids.partitions import rows_of_partitions
from megalith.sharding.plan import Placement, Shard
from megalith.sharding.row_wise_plan import row_wise_plan


@given(
    rows=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    world_size=st.integers(1, 9),
    pooling=st.sampled_from(["sum", "mean", "max", "none"]),
)
def test_every_table_is_covered_in_parts_that_differ_by_a_row(rows, world_size, pooling):
    tables = [
        mg.TableSpec(name=f"t{number}", rows=count, dim=4, features=(f"f{number}",), pooling=pooling)
        for number, count in enumerate(rows)
    ]
    plan = row_wise_plan(tables, world_size)
    plan.check(tables)
    for placement in plan.placements:
        sizes = [shard.num_rows for shard in placement.shards]
        assert max(sizes) - min(sizes) <= 1


@given(rows=st.lists(st.integers(1, 700), min_size=1, max_size=5), world_size=st.integers(1, 70))
def test_adaptive_tables_are_cut_at_units_in_parts_that_differ_by_one(rows, world_size):
    tables = [
        mg.TableSpec(name=f"t{number}", rows=count, dim=4, features=(f"f{number}",), store="adaptive")
        for number, count in enumerate(rows)
    ]
    plan = row_wise_plan(tables, world_size)
    plan.check(tables)
    for table, placement in zip(tables, plan.placements, strict=True):
        assert placement.store == "adaptive"
        unit = -(-table.rows // 64)
        sizes = [-(-shard.num_rows // unit) for shard in placement.shards]
        assert max(sizes) - min(sizes) <= 1
        assert len(sizes) == min(world_size, -(-table.rows // unit))


def dynamic(bound, **changed):
    store = {"kind": "dynamic", "bound": bound, "unknown": changed.pop("unknown", "shared")}
    return mg.TableSpec(name="t", rows=bound, dim=4, features=("f",), store=store, **changed)


@given(bound=st.integers(64, 2000), world_size=st.integers(1, 70))
def test_dynamic_tables_are_cut_where_partitions_of_ids_begin(bound, world_size):
    plan = row_wise_plan([dynamic(bound)], world_size)
    plan.check([dynamic(bound)])
    (placement,) = plan.placements
    assert placement.store == "dynamic"
    parts = [partitions_between(bound, shard.rows) for shard in placement.shards]
    assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])]
    assert len(parts) == min(world_size, 64)
    for shard, partitions in zip(placement.shards, parts, strict=True):
        assert shard.num_rows == rows_of_partitions(bound, partitions)


@pytest.mark.parametrize(
    ("kind", "store", "rectangles", "said"),
    [
        ("row_wise", "dynamic", [((0, 65), (0, 4)), ((65, 100), (0, 4))], "64 partitions of its ids begins"),
        ("column_wise", "dynamic", [((0, 100), (0, 2)), ((0, 100), (2, 4))], "of its ids begins"),
        (
            "data_parallel",
            "dynamic",
            [((0, 100), (0, 4)), ((0, 100), (0, 4))],
            "copies a dynamic one",
        ),
        ("row_wise", "adaptive", [((0, 64), (0, 4)), ((64, 100), (0, 4))], "and the table is not"),
        ("row_wise", "tiered", [((0, 64), (0, 4)), ((64, 100), (0, 4))], "the table is dynamic"),
    ],
)
def test_plans_that_cut_dynamic_tables_otherwise_are_refused(kind, store, rectangles, said):
    shards = [Shard(worker=one, rows=rows, columns=columns) for one, (rows, columns) in enumerate(rectangles)]
    placement = Placement(table="t", kind=kind, store=store, shards=shards)
    plan = mg.ShardingPlan(world_size=2, workers_per_node=2, placements=[placement])
    with pytest.raises(PlanError, match=f"table 't' .*{said}"):
        plan.check([dynamic(100)])


@pytest.mark.parametrize(
    ("pooling", "unknown", "whole"),
    [("mean", "shared", False), ("sum", "zeros", False), ("mean", "zeros", True), ("max", "shared", True)],
)
def test_means_in_which_ids_without_a_row_do_not_count_stay_on_one_worker(pooling, unknown, whole):
    table = dynamic(100, pooling=pooling, unknown=unknown)
    assert (len(row_wise_plan([table], 2).placement("t").shards) == 1) == whole
    shards = [Shard(worker=one, rows=rows, columns=(0, 4)) for one, rows in enumerate([(0, 64), (64, 100)])]
    placement = Placement(table="t", kind="row_wise", store="dynamic", shards=shards)
    plan = mg.ShardingPlan(world_size=2, workers_per_node=2, placements=[placement])
    if not whole:
        plan.check([table])
        return
    with pytest.raises(PlanError, match=f"cuts the rows of a table with {pooling} pooling"):
        plan.check([table])


@pytest.mark.parametrize(
    ("kind", "store", "rectangles", "said"),
    [
        ("row_wise", "adaptive", [((0, 63), (0, 4)), ((63, 100), (0, 4))], "rows at multiples of 2"),
        ("column_wise", "adaptive", [((0, 100), (0, 2)), ((0, 100), (2, 4))], "rows at multiples of 2"),
        ("data_parallel", "adaptive", [((0, 100), (0, 4)), ((0, 100), (0, 4))], "to every worker"),
        ("row_wise", "tiered", [((0, 64), (0, 4)), ((64, 100), (0, 4))], "the table is adaptive"),
    ],
)
def test_plans_that_cut_adaptive_tables_otherwise_are_refused(kind, store, rectangles, said):
    table = mg.TableSpec(name="t", rows=100, dim=4, features=("f",), store="adaptive")
    shards = [Shard(worker=one, rows=rows, columns=columns) for one, (rows, columns) in enumerate(rectangles)]
    placement = Placement(table="t", kind=kind, store=store, shards=shards)
    plan = mg.ShardingPlan(world_size=2, workers_per_node=2, placements=[placement])
    with pytest.raises(PlanError, match=f"table 't' .*{said}; fix or regenerate it"):
        plan.check([table])


def test_a_plan_of_an_adaptive_table_is_not_one_of_a_dense_table():
    tables = [
        mg.TableSpec(name="t", rows=100, dim=4, features=("f",), store=store) for store in ("adaptive", None)
    ]
    with pytest.raises(PlanError, match="is of an adaptive one, and the table is not"):
        row_wise_plan(tables[:1], 2).check(tables[1:])


@pytest.mark.parametrize(("pooling", "workers"), [("sum", (0, 1, 2)), ("max", (1,))])
def test_max_pooling_keeps_a_table_on_one_worker(pooling, workers):
    tables = [
        mg.TableSpec(name="t0", rows=7, dim=4, features=("f0",)),
        mg.TableSpec(name="t1", rows=7, dim=4, features=("f1",), pooling=pooling),
    ]
    assert row_wise_plan(tables, 3).placement("t1").workers == workers
