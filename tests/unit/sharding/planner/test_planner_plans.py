"""Plans as a whole: they cover every table, keep to memory, and say what does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megalith.bench.plan import skewed_tables
from megalith.core.errors import BoundError, ConfigError, PlanError
from megalith.core.schema import TableSpec
from megalith.embeddings import optimizers
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import ExchangeConfig
from megalith.sharding.planner import Planner, SearchSettings, make_plan
from megalith.sharding.planner.bound.branch_and_bound import BranchAndBound
from megalith.sharding.planner.enumerate import enumerate_options
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.search import ALGORITHMS, Deadline
from megalith.sharding.planner.statistics import default_statistics
from megalith.sharding.planner.topology import topology_of
from megalith.sharding.planner.types import LowerBound, PlacementProblem, Workload
from megalith.sharding.validate.dry_run import dry_run


def small_cluster(mebibytes: float, name: str = "zionex", tiers: int = 1) -> Cluster:
    cluster = catalog().cluster(name)
    memory = tuple(
        replace(tier, bytes=int(mebibytes * 2**20 * 4**number))
        for number, tier in enumerate(cluster.device.memory[:tiers])
    )
    return replace(cluster, device=replace(cluster.device, memory=memory))


def table(name: str, rows: int, dim: int = 16, **more: object) -> TableSpec:
    return TableSpec.model_validate(
        {"name": name, "rows": rows, "dim": dim, "features": (f"f-{name}",), **more}
    )


tables_drawn = st.lists(
    st.builds(
        lambda rows, dim, pooling, dtype: (rows, dim, pooling, dtype),
        st.integers(1, 300_000),
        st.integers(1, 130),
        st.sampled_from(["sum", "mean", "max", "none"]),
        st.sampled_from(["float32", "float16", "bfloat16"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    tables_drawn,
    st.sampled_from([1, 2, 3, 5, 8, 16, 20]),
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["rowwise_adagrad", "adam", "sgd"]),
    st.sampled_from(["fp32", "int8"]),
    st.booleans(),
)
def test_every_plan_covers_its_tables_and_keeps_to_memory(
    drawn: list[tuple[int, int, str, str]],
    size: int,
    algorithm: str,
    optimizer: str,
    codec: str,
    deduplicate: bool,
) -> None:
    tables = [
        table(f"t{number}", rows, dim, pooling=pooling, dtype=dtype)
        for number, (rows, dim, pooling, dtype) in enumerate(drawn)
    ]
    plan = make_plan(
        tables,
        catalog().cluster("zionex"),
        world_size=size,
        global_batch=64,
        optimizer=optimizer,
        exchange=ExchangeConfig.model_validate({"forward": codec, "deduplicate": deduplicate}),
        search=SearchSettings(algorithm=algorithm, steps=200),
    )
    plan.check(tables)
    estimate = plan.estimate
    # The exact search of the planner holds every bound to what was found; here it is held to other plans.
    other = make_plan(
        tables,
        catalog().cluster("zionex"),
        world_size=size,
        global_batch=64,
        optimizer=optimizer,
        exchange=plan.exchange,
        search=SearchSettings(algorithm="greedy", improve=False, steps=1),
    ).estimate
    assert max(one.lower_bound_seconds for one in (estimate, other)) <= (1 + 1e-9) * min(
        one.step_seconds for one in (estimate, other)
    )
    assert estimate.gap == pytest.approx(estimate.step_seconds / estimate.lower_bound_seconds - 1)
    assert len(estimate.workers) == size
    held = np.zeros(size)
    for spec in tables:
        for shard in plan.placement(spec.name).shards:
            assert shard.worker < size
            held[shard.worker] += shard.num_rows * shard.dim * {"float32": 4}.get(spec.dtype, 2)
    stated = np.array([one.memory_bytes["hbm"] for one in estimate.workers])
    assert (stated >= held - 1).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_memory_that_is_short_is_respected(algorithm: str) -> None:
    tables = [table(f"t{number}", 100_000, 32) for number in range(12)]
    # 12 tables of 13 MB on 4 workers with room for 41 MB each: at most three whole tables a worker.
    cluster = small_cluster(49)
    plan = make_plan(
        tables,
        cluster,
        world_size=4,
        global_batch=256,
        search=SearchSettings(algorithm=algorithm, steps=1000),
    )
    plan.check(tables)
    room = plan.estimate.memory_capacity_bytes["hbm"]
    used = [one.memory_bytes["hbm"] for one in plan.estimate.workers]
    assert max(used) <= room
    assert sum(used) > 0.9 * 4 * room


def test_tables_beyond_the_first_memory_go_to_the_next() -> None:
    tables = [table(f"t{number}", 100_000, 32) for number in range(12)]
    cluster = small_cluster(20, tiers=2)
    plan = make_plan(tables, cluster, world_size=4, global_batch=256, search=SearchSettings(steps=1000))
    tiers = {one.tier for one in plan.estimate.tables}
    assert "ddr" in tiers
    for one in plan.estimate.workers:
        for tier, room in plan.estimate.memory_capacity_bytes.items():
            assert one.memory_bytes[tier] <= room * (1 + 1e-9)


def test_where_a_cache_of_a_fifth_leaves_no_room_smaller_ones_are_taken() -> None:
    # Alike, so that prices alone would send all of them to the same memory; 94% of both must be filled.
    tables = [table(f"t{number}", 200_000, 32) for number in range(12)]
    cluster = small_cluster(20, tiers=2)
    plan = make_plan(tables, cluster, world_size=4, global_batch=256, search=SearchSettings(steps=2000))
    cached = {one.cached_rows for one in plan.estimate.tables if one.tier == "ddr"}
    assert cached
    assert min(cached) < 0.2
    for one in plan.estimate.workers:
        for tier, room in plan.estimate.memory_capacity_bytes.items():
            assert one.memory_bytes[tier] <= room * (1 + 1e-9)
    # The dry run counts the same caches, and its own buffers.
    checked = dry_run(tables, plan, cluster, global_batch=256)
    for stated, found in zip(plan.estimate.workers, checked.workers, strict=True):
        assert found.memory_bytes["ddr"] == pytest.approx(stated.memory_bytes["ddr"])
        assert 0 <= found.memory_bytes["hbm"] - stated.memory_bytes["hbm"] < 2**20


def test_a_table_larger_than_any_worker_is_cut() -> None:
    plan = make_plan(
        [table("big", 1_000_000, 16)],
        small_cluster(30),
        world_size=4,
        global_batch=64,
        search=SearchSettings(steps=500),
    )
    assert len(plan.placement("big").workers) > 1


def test_too_little_memory_says_how_much_and_what_would_do() -> None:
    tables = [table("big", 1_000_000, 16), table("small", 1000, 16)]
    with pytest.raises(
        PlanError, match=r"need 64\.9 MiB .* 2 workers hold 56\.0 MiB .* \(8\.9 MiB short\)"
    ) as found:
        make_plan(tables, small_cluster(35), world_size=2, global_batch=64)
    sentence = str(found.value)
    assert "take dtype float16 for table 'big', or 3 workers of the same memory (1 more)." in sentence
    # What it says is true.
    half = [tables[0].model_copy(update={"dtype": "float16"}), tables[1]]
    make_plan(half, small_cluster(35), world_size=2, global_batch=64, search=SearchSettings(steps=500)).check(
        half
    )
    make_plan(
        tables, small_cluster(35), world_size=3, global_batch=64, search=SearchSettings(steps=500)
    ).check(tables)


def test_max_pooling_that_cannot_be_cut_far_enough_names_the_table() -> None:
    tables = [table("peaks", 1_000_000, 8, pooling="max")]
    with pytest.raises(PlanError, match=r"smallest piece of table 'peaks' needs 19\.1 MiB"):
        make_plan(tables, small_cluster(10), world_size=8, global_batch=64)


def test_a_heavy_optimizer_is_named() -> None:
    tables = [table("big", 1_000_000, 16)]
    with pytest.raises(PlanError, match="optimizer rowwise_adagrad instead of adam"):
        make_plan(tables, small_cluster(60), world_size=2, global_batch=64, optimizer="adam")


def test_max_pooling_is_never_cut_by_rows_and_sequences_not_inside_a_node() -> None:
    topology = topology_of(catalog().cluster("zionex"), 16)
    kinds = {}
    for pooling in ("max", "none", "sum"):
        spec = table("t", 10_000, 64, pooling=pooling)
        kinds[pooling] = {
            option.kind for option in enumerate_options(spec, default_statistics(spec), topology)
        }
    assert len(kinds["sum"]) == 7
    assert kinds["sum"] - kinds["none"] == {"table_row", "grid"}
    assert kinds["sum"] - kinds["max"] == {"row_wise", "table_row", "grid"}


def test_odd_dims_are_cut_into_any_number_of_slices() -> None:
    topology = topology_of(catalog().cluster("zionex"), 8)
    spec = table("t", 100, 93)
    columns = [
        option.columns
        for option in enumerate_options(spec, default_statistics(spec), topology)
        if option.kind == "column_wise"
    ]
    assert columns == [2, 3, 4, 5, 6, 7, 8]


def test_processes_of_one_host_share_it() -> None:
    host = catalog().cluster("cpu-rack")
    single = topology_of(host, 1)
    four = topology_of(replace(host, levels=(replace(host.levels[0], count=1),)), 4)
    assert (four.world_size, four.per_node, four.nodes) == (4, 4, 1)
    assert four.device.bytes == single.device.bytes // 4
    assert four.device.bytes_per_second == single.device.bytes_per_second / 4
    assert four.slowest_link == "host"


def test_more_workers_than_there_are_is_refused() -> None:
    with pytest.raises(PlanError, match="has 128 workers, not 129"):
        topology_of(catalog().cluster("zionex"), 129)
    with pytest.raises(PlanError, match="8 devices a node, not 9"):
        topology_of(catalog().cluster("zionex"), 9, 9)


def test_unknown_names_are_refused() -> None:
    cluster = catalog().cluster("zionex")
    with pytest.raises(ConfigError, match="did you mean 'greedy'"):
        make_plan([table("t", 10)], cluster, global_batch=8, search=SearchSettings(algorithm="gredy"))
    with pytest.raises(ConfigError, match="did you mean 'adam'"):
        make_plan([table("t", 10)], cluster, global_batch=8, optimizer="adamm")


def test_a_search_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 step, not 0"):
        SearchSettings(steps=0)


def test_hot_rows_first_move_the_cut() -> None:
    tables, statistics = skewed_tables(1)
    spec = table("t", 1_000_000, 8)
    hot = replace(
        statistics[tables[0].name], rows=(1.0, 100.0, 1_000_000.0), shares=(0.1, 0.9, 1.0), hot_first=True
    )
    assert hot.even_cut(2, 0.0).tolist() == [0, 500_000, 1_000_000]
    assert hot.even_cut(2, 1.0)[1] < 60
    assert len(set(hot.even_cut(16, 0.95).tolist())) == 17
    assert spec.rows == hot.even_cut(3, 0.5)[-1]


def test_the_planner_knows_every_optimizer() -> None:
    from megalith.cost.embedding import OPTIMIZER_VALUES, state_bytes

    kinds = {}
    for name in ("SGD", "AdaGrad", "RowWiseAdaGrad", "Adam", "RowWiseAdam", "LAMB", "LARS"):
        optimizer = getattr(optimizers, name)()
        sizes = {"none": 0, "row": 1, "full": 10}
        kinds[optimizer.kind] = 4 * (sizes[optimizer.first_state] + sizes[optimizer.second_state])
    assert kinds == {kind: state_bytes(kind, 10) for kind in OPTIMIZER_VALUES}


def test_counted_steps_find_the_same_plan_whatever_the_clock_says() -> None:
    tables, statistics = skewed_tables(30, seed=1)
    cluster = catalog().cluster("zionex")
    plans = [
        make_plan(
            tables,
            cluster,
            world_size=8,
            global_batch=4096,
            statistics=statistics,
            search=SearchSettings(seconds=seconds, steps=400),
        )
        for seconds in (1e-6, 9.0)
    ]
    assert plans[0].placements == plans[1].placements
    assert plans[0].estimate.lower_bound_seconds == plans[1].estimate.lower_bound_seconds


class TooHigh(BranchAndBound):
    """A bound of ten times what is right."""

    def lower_bound(self, problem: PlacementProblem, deadline: Deadline) -> LowerBound | None:
        bound = super().lower_bound(problem, deadline)
        return bound and replace(bound, seconds=10 * bound.seconds)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bound_above_the_plan_is_reported(algorithm: str) -> None:
    tables = [table(f"t{number}", 5000, 32) for number in range(5)]
    inputs = plan_inputs(tables, catalog().cluster("zionex"), Workload(256), world_size=4)
    search = SearchSettings(algorithm=algorithm, steps=100)
    assert Planner(search).plan(inputs).estimate.gap < 9
    with pytest.raises(BoundError, match=r"above the .* s that was found, so the bound is wrong"):
        Planner(search, bounder=TooHigh()).plan(inputs)
