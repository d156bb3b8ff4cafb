"""Which memory a plan puts tables in, what it says of them, and whether this runtime runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from megalith.core.errors import PlanError
from megalith.core.schema import TableSpec
from megalith.core.store_spec import AdaptiveSpec, DynamicSpec, TieredSpec, partitions_between
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster
from megalith.sharding.plan import Placement, Shard, ShardingPlan, has_column_shards, read_plan
from megalith.sharding.planner import Planner, SearchSettings, make_plan
from megalith.sharding.planner.enumerate import OptionEnumerator
from megalith.sharding.planner.estimate.cache_misses import missed_rows
from megalith.sharding.planner.estimate.estimator import CostEstimator
from megalith.sharding.planner.inputs import local_cluster, plan_inputs
from megalith.sharding.planner.loads import fits, loads_of, solution_seconds
from megalith.sharding.planner.memory import DENSE_SHARE
from megalith.sharding.planner.partition.caches import grown_caches, smallest_caches
from megalith.sharding.planner.partition.greedy import most_spread, place_balanced
from megalith.sharding.planner.statistics import zipf_statistics
from megalith.sharding.planner.types import MemoryPolicy, MemoryTiers, PlanInputs, Workload
from megalith.sharding.row_wise_plan import row_wise_plan
from megalith.sharding.runnable import check_runnable
from megalith.sharding.validate.dry_run import dry_run


def table(name: str, rows: int, dim: int = 16) -> TableSpec:
    return TableSpec(name=name, rows=rows, dim=dim, features=(f"f-{name}",))


def small_host(mebibytes: int) -> Cluster:
    """This machine with less memory, and a disk."""
    host = local_cluster(2, 2)
    memory, disk = host.device.memory
    memory = replace(memory, bytes=mebibytes * 2**20)
    return replace(host, device=replace(host.device, memory=(memory, disk)))


def inputs_of(tables: list[TableSpec], mebibytes: int, memory: MemoryPolicy | None = None) -> PlanInputs:
    return plan_inputs(tables, small_host(mebibytes), Workload(64), world_size=2, memory=memory)


TABLES = [table("huge", 2_000_000), table("large", 400_000), table("small", 2000)]
SEARCH = SearchSettings(steps=200)


def test_the_plan_of_a_run_keeps_all_rows_in_memory() -> None:
    plan = Planner(SEARCH).plan(inputs_of(TABLES, 1024, MemoryPolicy.of_runtime()))
    assert {(one.store, one.tier, one.cache_bytes) for one in plan.placements} == {("dense", "ddr", 0)}
    assert plan.runnable.value
    check_runnable(plan, "plan.json")


def test_what_does_not_fit_in_memory_is_refused_though_there_is_a_disk() -> None:
    with pytest.raises(PlanError, match=r"need 155\.8 MiB .* hold 102\.4 MiB .*; take dtype float16 for"):
        Planner(SEARCH).plan(inputs_of(TABLES, 128, MemoryPolicy.of_runtime()))
    # A plan for such machines may use it; this runtime does where no row is cut.
    plan = Planner(SEARCH).plan(inputs_of(TABLES, 128))
    tiered = [one for one in plan.placements if one.store == "tiered"]
    assert {one.tier for one in tiered} == {"ssd"}
    assert plan.runnable.value is not any(has_column_shards(one) for one in tiered)


def test_caches_of_a_given_size_are_shared_out() -> None:
    given = 16 * 2**20
    inputs = inputs_of(TABLES, 256, MemoryPolicy.of_runtime(given))
    plan = Planner(SEARCH).plan(inputs)
    stores = {one.table: (one.store, one.tier) for one in plan.placements}
    assert stores == {"huge": ("tiered", "ssd"), "large": ("tiered", "ssd"), "small": ("dense", "ddr")}
    assert TABLES[2].weight_bytes < DENSE_SHARE * 2 * given
    caches = np.zeros(2)
    for placement in plan.placements:
        for shard in placement.shards:
            caches[shard.worker] += shard.cache_bytes
    assert (caches <= given).all()
    assert caches == pytest.approx([given, given], abs=100)
    checked = dry_run(TABLES, plan, small_host(256), global_batch=64)
    for load in checked.workers:
        assert load.memory_bytes["ddr"] >= given - 100
        assert load.memory_bytes["ssd"] > 0


def test_tables_that_fit_into_the_caches_stay_dense() -> None:
    plan = Planner(SEARCH).plan(inputs_of(TABLES, 1024, MemoryPolicy.of_runtime(200 * 2**20)))
    assert {one.store for one in plan.placements} == {"dense"}


def test_a_plan_for_accelerators_is_not_runnable_and_says_so(tmp_path: Path) -> None:
    plan = make_plan(TABLES, "zionex", global_batch=64, world_size=2, search=SEARCH)
    path = tmp_path / "plan.json"
    plan.write(path)
    reason = "its workers are a100-40g, and this runtime trains on processors"
    assert json.loads(path.read_text())["runnable"] == {"value": False, "reason": reason}
    again = read_plan(path)
    assert str(again.runnable) == f"no ({reason})"
    with pytest.raises(
        PlanError, match=r"plan\.json is not runnable here: its workers are a100-40g.*auto\.$"
    ):
        check_runnable(again, str(path))


def test_a_plan_written_by_hand_that_cuts_tiered_rows_is_refused() -> None:
    halves = [Shard(worker=0, rows=(0, 10), columns=(at, at + 2), cache_bytes=64) for at in (0, 2)]
    placement = Placement(table="t", kind="column_wise", store="tiered", tier="nvme", shards=tuple(halves))
    plan = ShardingPlan(world_size=1, workers_per_node=1, placements=(placement,))
    with pytest.raises(PlanError, match=r"table .t. is tiered and cut by columns"):
        check_runnable(plan, "plan.json")
    dense = placement.model_copy(update={"store": "dense"})
    with pytest.raises(PlanError, match="gives a dense store cache_bytes"):
        plan.model_copy(update={"placements": (dense,)}).check(
            [TableSpec(name="t", rows=10, dim=4, features=("f",))]
        )


def test_a_plan_of_an_older_version_is_refused_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"version": 1, "world_size": 1, "workers_per_node": 1, "placements": []}')
    with pytest.raises(PlanError, match="has plan version 1, this package reads 2; regenerate it with"):
        read_plan(path)


def test_a_cache_misses_the_cold_rows_of_its_own_shard() -> None:
    hot_first, spread = zipf_statistics(1_000_000, 1.0), zipf_statistics(1_000_000, 1.0, hot_first=False)
    first, rows = np.array([0.0, 500_000.0]), np.array([500_000.0, 500_000.0])
    none, half, all_of_it = (
        missed_rows(hot_first, first, rows, np.full(2, share), 50_000.0) for share in (0.0, 0.5, 1.0)
    )
    assert none.sum() == pytest.approx(float(hot_first.distinct_before(np.array([1e6]), 50_000.0)[0]))
    assert (half < none).all()
    assert half[0] / none[0] < half[1] / none[1]
    assert all_of_it == pytest.approx([0.0, 0.0])
    even = missed_rows(spread, first, rows, np.full(2, 0.1), 50_000.0)
    assert even[0] == even[1] > 0


def test_disks_are_read_by_blocks() -> None:
    cluster = catalog().cluster("zionex")
    tiers = {tier.name: tier for tier in cluster.device.memory}
    assert list(tiers) == ["hbm", "ddr", "ssd"]
    assert (tiers["ddr"].block_bytes, tiers["ssd"].block_bytes) == (0, 4096)
    seconds = []
    for block in (0, 4096):
        ssd = replace(tiers["ssd"], block_bytes=block)
        device = replace(cluster.device, memory=(tiers["hbm"], ssd))
        inputs = plan_inputs(
            [table("t", 5_000_000)], replace(cluster, device=device), Workload(8192), world_size=1
        )
        memory = MemoryTiers([1], [0.01])
        problem = CostEstimator().estimate(inputs, OptionEnumerator().enumerate(inputs, memory))
        seconds.append(float(problem.total[0, 1]))
    assert seconds[1] > 10 * seconds[0]


def test_caches_grow_into_the_room_that_is_left() -> None:
    tables = [table(f"t{number}", 100_000, 32) for number in range(6)]
    cluster = catalog().cluster("zionex")
    hbm, ddr, _ = cluster.device.memory
    memory = (replace(hbm, bytes=8 * 2**20), replace(ddr, bytes=64 * 2**20))
    cluster = replace(cluster, device=replace(cluster.device, memory=memory))
    inputs = plan_inputs(tables, cluster, Workload(4096), world_size=4)
    options = OptionEnumerator().enumerate(inputs, MemoryTiers([1], [0.2, 0.05, 0.01]))
    problem = CostEstimator().estimate(inputs, options)
    small = smallest_caches(problem)
    assert {problem.options[option].cached for option in np.flatnonzero(small)} == {0.01}
    lean = replace(problem, peak=np.where(small[:, None], problem.peak, 2 * problem.capacity.sum()))
    start = place_balanced(lean, most_spread(lean))
    assert start is not None
    grown = grown_caches(problem, start)
    assert fits(problem, loads_of(problem, grown))
    assert max(problem.options[option].cached for option in grown.choice) > 0.01
    assert solution_seconds(problem, grown) <= solution_seconds(problem, start)
    # Nothing but the caches has changed.
    for before, after in zip(start.choice.tolist(), grown.choice.tolist(), strict=True):
        assert replace(problem.options[after], cached=0.01) == problem.options[before]


def test_adaptive_tables_are_cut_at_units_of_rows_and_count_what_their_budget_gives_them() -> None:
    tables = [one.model_copy(update={"store": AdaptiveSpec()}) for one in TABLES[:2]] + TABLES[2:]
    whole = inputs_of(tables, 100, MemoryPolicy.of_runtime())
    with pytest.raises(PlanError, match="need"):
        Planner(SEARCH).plan(whole)
    plan = Planner(SEARCH).plan(replace(whole, adaptive_share=1 / 16))
    assert plan.runnable.value
    assert [plan.placement(one.name).store for one in tables] == ["adaptive", "adaptive", "dense"]
    assert {plan.placement(one.name).kind for one in tables[:2]} <= {"table_wise", "row_wise"}
    assert plan.estimate is not None
    (held,) = [one.bytes for one in plan.estimate.tables if one.table == "huge"]
    assert held == 2_000_000 * (16 * 4 + 4) / 16


def test_an_adaptive_table_that_no_worker_holds_is_cut_over_all_of_them() -> None:
    huge = table("huge", 2_000_000).model_copy(update={"store": AdaptiveSpec()})
    for slower in (False, True):
        # With a disk for others, and without: it stays in memory.
        policy = MemoryPolicy.of_runtime(1 << 20 if slower else None)
        placement = Planner(SEARCH).plan(inputs_of([huge], 200, policy)).placement("huge")
        assert (placement.kind, placement.store) == ("row_wise", "adaptive")
        assert {shard.rows[0] % -(-2_000_000 // 64) for shard in placement.shards} == {0}
        assert len(placement.workers) == 2


def dynamic(one: TableSpec, **changed: object) -> TableSpec:
    return one.model_copy(update={"store": DynamicSpec(bound=one.rows, **changed)})


def test_a_dynamic_table_that_no_worker_holds_is_cut_at_partitions_and_counts_its_map() -> None:
    huge = dynamic(table("huge", 1_000_000))
    plan = Planner(SEARCH).plan(inputs_of([huge], 160, MemoryPolicy.of_runtime()))
    placement = plan.placement("huge")
    assert (placement.kind, placement.store, len(placement.workers)) == ("row_wise", "dynamic", 2)
    assert all(partitions_between(huge.rows, shard.rows) is not None for shard in placement.shards)
    assert plan.estimate is not None
    (held,) = [one.bytes for one in plan.estimate.tables]
    assert held == pytest.approx(1_000_000 * (16 * 4 + 4 + 23), rel=0.02)
    with pytest.raises(PlanError, match="need"):
        Planner(SEARCH).plan(inputs_of([huge], 30, MemoryPolicy.of_runtime()))


def test_rows_on_disk_under_a_dynamic_table_are_behind_a_cache_and_its_map_in_memory() -> None:
    huge = dynamic(table("huge", 2_000_000), over=TieredSpec())
    inputs = inputs_of([huge, table("small", 100)], 150, MemoryPolicy.of_runtime(4 << 20))
    plan = Planner(SEARCH).plan(inputs)
    placement = plan.placement("huge")
    assert (placement.store, placement.tier) == ("dynamic", "ssd")
    assert 7 << 20 < placement.cache_bytes <= 8 << 20
    plan.check([huge, table("small", 100)])
    assert plan.runnable.value
    assert plan.estimate is not None
    memory = sum(worker.memory_bytes["ddr"] for worker in plan.estimate.workers)
    assert memory - placement.cache_bytes == pytest.approx(2_000_000 * 23, rel=0.05)


def test_hot_ids_of_dynamic_tables_are_spread_by_their_hash() -> None:
    huge = dynamic(table("huge", 1_000_000))
    inputs = inputs_of([huge], 1000, MemoryPolicy.of_runtime())
    assert not inputs.statistics["huge"].hot_first
    checked = dry_run([huge], row_wise_plan([huge], 2), small_host(1000), global_batch=4096)
    assert checked.balance["lookups"] == pytest.approx(1.0)
    assert checked.batch_lookups_balance < 1.5
