"""The planner's benchmarks on small sets; real processes for the ranking are in the distributed tests."""

from __future__ import annotations

import numpy as np
import pytest

from megalith.bench.plan import bench_plan, skewed_tables
from megalith.bench.plan_ranking import SETTINGS, random_plans, ranked_tables, spearman, uniform_plans
from megalith.hardware.catalog import catalog
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.estimate.predict import predict_step


def test_the_same_seed_draws_the_same_tables() -> None:
    assert skewed_tables(20, 5) == skewed_tables(20, 5)
    assert skewed_tables(20, 5) != skewed_tables(20, 6)


def test_plans_are_compared_with_greedy() -> None:
    found = bench_plan([(6, 2, 256)], seeds=1, optimizers=["sgd"])["results"]["measured"][0]["plans"]
    assert list(found) == ["greedy", "karmarkar_karp", "greedy + local search", "best"]
    assert found["best"]["step_seconds"] <= found["greedy"]["step_seconds"]
    bound = found["best"]["step_seconds"] / (1 + found["best"]["gap"])
    assert all(bound <= plan["step_seconds"] * (1 + 1e-9) for plan in found.values())


def test_random_plans_cover_their_tables_and_differ() -> None:
    setting = SETTINGS["large"]
    tables, statistics = ranked_tables(setting)
    plans = [*random_plans(tables, 3, 10, 1, setting), *uniform_plans(tables, 3, setting).values()]
    for plan in plans:
        plan.check(tables)
    cluster = catalog().cluster("cpu-rack")
    steps = {
        predict_step(tables, plan, cluster, global_batch=64, statistics=statistics)["step_seconds"]
        for plan in plans
    }
    assert len(steps) == len(plans)


@pytest.mark.parametrize(("size", "hardware"), [(16, "zionex"), (3, "cpu-rack"), (1, "zionex")])
def test_a_plan_that_is_given_costs_what_the_planner_said(size: int, hardware: str) -> None:
    tables, statistics = skewed_tables(20, seed=2)
    cluster = catalog().cluster(hardware)
    plan = make_plan(
        tables,
        cluster,
        world_size=size,
        global_batch=1024,
        statistics=statistics,
        search=SearchSettings(steps=300),
    )
    found = predict_step(tables, plan, cluster, global_batch=1024, statistics=statistics)
    assert found["step_seconds"] == pytest.approx(plan.estimate.step_seconds, rel=1e-9)


def test_spearman_is_about_order_alone() -> None:
    values = np.array([3.0, 1.0, 2.0])
    assert spearman(values, np.exp(values)) == pytest.approx(1)
    assert spearman(values, -values) == pytest.approx(-1)
