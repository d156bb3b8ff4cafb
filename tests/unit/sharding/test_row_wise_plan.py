"""Plans without a planner: every row once, in equal parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import megalith as mg
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


@pytest.mark.parametrize(("pooling", "workers"), [("sum", (0, 1, 2)), ("max", (1,))])
def test_max_pooling_keeps_a_table_on_one_worker(pooling, workers):
    tables = [
        mg.TableSpec(name="t0", rows=7, dim=4, features=("f0",)),
        mg.TableSpec(name="t1", rows=7, dim=4, features=("f1",), pooling=pooling),
    ]
    assert row_wise_plan(tables, 3).placement("t1").workers == workers
