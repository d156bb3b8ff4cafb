"""Tables of more rows than the native core counts: one sentence, before memory is asked for."""

import pytest

import megalith as mg
from megalith.core.errors import ConfigError, PlanError
from megalith.core.schema import MAX_DENSE_ROWS
from megalith.embeddings.initial_values import TableWindow
from megalith.sharding.plan import Placement, Shard, ShardingPlan

# So wide that no machine has the memory: a refusal that came later would be another one.
WIDE = 1 << 20


def table(rows, name="users", dim=WIDE):
    return mg.TableSpec(name=name, rows=rows, dim=dim, features=(f"f-{name}",))


@pytest.mark.parametrize("rows", [2**32, 2**32 + 1, 2**40])
def test_a_dense_table_of_too_many_rows_is_refused(rows):
    with pytest.raises(ConfigError, match=rf"Table 'users' has {rows:,} rows .* cut its rows .*\.$"):
        mg.EmbeddingCollection([table(8, "small", 4), table(rows)])


def test_a_part_of_too_many_rows_is_refused_by_the_name_of_the_table():
    part = table(2**32, "users@0")
    windows = {"users@0": TableWindow(table(2**34), (0, 2**32), (0, WIDE))}
    with pytest.raises(ConfigError, match="Table 'users' has 4,294,967,296 rows"):
        mg.EmbeddingCollection([part], windows=windows)


def plan_of(rows, workers):
    each = rows // workers
    shards = tuple(
        Shard(worker=worker, rows=(worker * each, (worker + 1) * each), columns=(0, 4))
        for worker in range(workers)
    )
    placement = Placement(table="users", kind="row_wise", shards=shards)
    return ShardingPlan(world_size=workers, workers_per_node=workers, placements=(placement,))


def test_a_plan_may_cut_a_table_of_more_rows_into_parts_of_fewer():
    plan_of(2**33, 4).check([table(2**33, dim=4)])
    plan_of(2 * MAX_DENSE_ROWS, 2).check([table(2 * MAX_DENSE_ROWS, dim=4)])


def test_a_plan_with_a_part_of_too_many_rows_is_refused():
    with pytest.raises(PlanError, match=r"Table 'users' has 4,294,967,296 rows on one worker"):
        plan_of(2**33, 2).check([table(2**33, dim=4)])
