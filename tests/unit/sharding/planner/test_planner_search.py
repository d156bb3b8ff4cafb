"""Every algorithm against the exact optimum of small problems, found by trying everything."""

from __future__ import annotations

from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megalith.bench.plan import skewed_tables, usual_tables
from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.bound import relaxation
from megalith.sharding.planner.bound.branch_and_bound import lower_bound
from megalith.sharding.planner.bound.relaxation import PlanRelaxation
from megalith.sharding.planner.enumerate import OptionEnumerator
from megalith.sharding.planner.estimate.estimator import CostEstimator
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.loads import fits, loads_of, step_seconds
from megalith.sharding.planner.partition.greedy import (
    most_spread,
    place_balanced,
    place_greedily,
    table_wise_greedy,
)
from megalith.sharding.planner.partition.karmarkar_karp import karmarkar_karp
from megalith.sharding.planner.partition.local_search import local_search
from megalith.sharding.planner.partition.mip import solve_exactly
from megalith.sharding.planner.search import StepClock
from megalith.sharding.planner.statistics import zipf_statistics
from megalith.sharding.planner.table_file import find_table_file, read_table_file
from megalith.sharding.planner.types import Ints, MemoryTiers, PlacementProblem, PlacementSolution, Workload

few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def problem_of(
    shapes: list[tuple[int, int, float, float]], size: int, per_node: int | None = None, min_dim: int = 8
) -> PlacementProblem:
    tables = [
        TableSpec(name=f"t{number}", rows=rows, dim=dim, features=(f"f{number}",))
        for number, (rows, dim, _, _) in enumerate(shapes)
    ]
    statistics = {
        f"t{number}": zipf_statistics(rows, lookups, skew)
        for number, (rows, _, lookups, skew) in enumerate(shapes)
    }
    inputs = plan_inputs(
        tables,
        catalog().cluster("zionex"),
        Workload(512),
        world_size=size,
        workers_per_node=per_node,
        statistics=statistics,
    )
    return CostEstimator().estimate(inputs, OptionEnumerator(min_dim).enumerate(inputs, MemoryTiers([0])))


def placings(problem: PlacementProblem, option: int) -> list[tuple[int, ...]]:
    """All places of an option's blocks; equal blocks are not told apart."""
    groups = range(problem.num_groups(option))
    wide, narrow = problem.counts[option].tolist()
    if wide + narrow > len(groups):
        return []
    return [
        (*first, *second)
        for first in combinations(groups, wide)
        for second in combinations([group for group in groups if group not in first], narrow)
    ]


def optimum(problem: PlacementProblem) -> float:
    every = [
        [(option, places) for option in problem.options_of(table) for places in placings(problem, option)]
        for table in range(problem.num_tables)
    ]
    best = np.inf
    for plan in product(*every):
        solution = PlacementSolution(
            np.array([option for option, _ in plan]), [np.array(places) for _, places in plan]
        )
        loads = loads_of(problem, solution)
        if fits(problem, loads):
            best = min(best, step_seconds(problem, loads, solution))
    return best


shapes = st.tuples(
    st.integers(20, 500_000), st.integers(1, 24), st.floats(0.2, 30), st.sampled_from([0.0, 0.8, 1.3])
)


@few
@given(st.lists(shapes, min_size=1, max_size=3), st.integers(2, 3))
def test_no_algorithm_beats_the_optimum_nor_the_bound_the_optimum(
    tables: list[tuple[int, int, float, float]], size: int
) -> None:
    check_against_everything(problem_of(tables, size))


@few
@given(st.lists(shapes, min_size=1, max_size=2))
def test_the_same_holds_over_nodes(tables: list[tuple[int, int, float, float]]) -> None:
    check_against_everything(problem_of(tables, 4, per_node=2))


def check_against_everything(problem: PlacementProblem) -> None:
    best = optimum(problem)
    bound = lower_bound(problem, StepClock(1.0).after(200))
    assert bound is not None
    assert bound.seconds <= best * (1 + 1e-9)
    assert bound.root_seconds <= bound.seconds * (1 + 1e-9)
    starts = [
        table_wise_greedy(problem),
        place_greedily(problem, bound.choice),
        place_balanced(problem, bound.choice),
        place_balanced(problem, most_spread(problem), by_memory=True),
        karmarkar_karp(problem, bound.choice),
    ]
    for start in starts:
        assert start is not None
        before = step_seconds(problem, loads_of(problem, start), start)
        assert before >= best * (1 - 1e-9)
        better = local_search(problem, start, StepClock(1.0).after(500))
        after = step_seconds(problem, loads_of(problem, better), better)
        assert best * (1 - 1e-9) <= after <= before
    assert starts[0] is not None
    # It ends when the best is proved, long before that.
    exact = solve_exactly(problem, bound, starts[0], seconds=3600)
    assert exact is not None
    found = step_seconds(problem, loads_of(problem, exact[0]), exact[0])
    assert found == pytest.approx(best, rel=2e-4)
    assert exact[1] <= best * (1 + 1e-9)


@pytest.mark.parametrize("size", [32, 128])
def test_a_bound_from_a_few_columns_is_that_of_all_of_them(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More workers than tables: largest pieces matter for most of them.
    drawn = np.random.default_rng(size)
    shapes = [(int(10 ** drawn.uniform(2, 6)), 64, float(drawn.uniform(1, 40)), 1.05) for _ in range(40)]
    problem = problem_of(shapes, size)
    minimums, caps = np.zeros(4), np.full(4, np.inf)
    whole = PlanRelaxation(problem).solve(minimums, caps)
    assert whole is not None
    programs: list[int] = []
    program = PlanRelaxation._program

    def counted(self: PlanRelaxation, kept: Ints, *more: Any) -> Any:
        programs.append(len(kept))
        return program(self, kept, *more)

    monkeypatch.setattr(PlanRelaxation, "_program", counted)
    for name in ("_MANY", "_WARM"):
        monkeypatch.setattr(relaxation, name, 0)
    few = PlanRelaxation(problem).solve(minimums, caps)
    assert few is not None
    assert max(programs) < 0.7 * len(problem.options)
    assert few.seconds <= whole.seconds * (1 + 1e-9)
    assert few.seconds == pytest.approx(whole.seconds, rel=3e-4)


def test_differencing_finds_the_textbook_partition() -> None:
    """8, 7, 6, 5, 4 on two workers: 16 and 14 by differencing, where largest first gives 17 and 13."""
    problem = problem_of([(1000, 8, size, 0.0) for size in (8, 7, 6, 5, 4)], 2)
    # One phase that costs what the comment says, and nothing else.
    loads = np.zeros_like(problem.shards)
    loads[:, 1] = [8, 7, 6, 5, 4][0]
    whole = np.array([problem.first[table] for table in range(5)])
    for table, cost in enumerate((8, 7, 6, 5, 4)):
        loads[problem.starts[whole[table], 0], 1] = cost
    problem.shards[:] = loads
    problem.total[whole] = loads[problem.starts[whole, 0]]
    seconds = []
    for place in (karmarkar_karp, place_greedily):
        found = place(problem, whole)
        assert found is not None
        seconds.append(float(loads_of(problem, found)[:, 1].max()))
    assert seconds == [16, 17]


def test_local_search_never_loses_a_table_or_a_slice() -> None:
    tables, statistics = skewed_tables(40, seed=3)
    inputs = plan_inputs(
        tables, catalog().cluster("zionex"), Workload(8192), world_size=16, statistics=statistics
    )
    problem = CostEstimator().estimate(inputs, OptionEnumerator().enumerate(inputs, MemoryTiers([0])))
    start = table_wise_greedy(problem)
    assert start is not None
    found = local_search(problem, start, StepClock(1.0).after(1000))
    for table, option in enumerate(found.choice):
        assert problem.table[option] == table
        groups = found.groups[table]
        assert len(groups) == problem.counts[option].sum() == len(set(groups.tolist()))
        assert groups.max() < problem.num_groups(int(option))
    assert fits(problem, loads_of(problem, found))


def test_placings_are_distinct() -> None:
    problem = problem_of([(100, 17, 1.0, 0.0)], 3)
    two = next(option for option in problem.options_of(0) if problem.options[option].columns == 2)
    assert len(placings(problem, two)) == len(set(permutations(range(3), 2)))


def test_imbalance_is_at_least_a_fifth_below_greedy() -> None:
    for seed in range(3):
        tables, statistics = skewed_tables(60, seed)
        cluster = catalog().cluster("zionex")
        greedy, best = (
            make_plan(
                tables,
                cluster,
                world_size=16,
                global_batch=16384,
                statistics=statistics,
                search=SearchSettings(algorithm=algorithm, improve=algorithm == "best", steps=1000),
            ).estimate
            for algorithm in ("greedy", "best")
        )
        assert best.imbalance < 0.8 * greedy.imbalance
        assert best.step_seconds < greedy.step_seconds


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_a_thousand_tables_on_128_workers_are_near_the_bound(optimizer: str) -> None:
    tables, statistics = usual_tables(1000)
    plan = make_plan(
        tables,
        catalog().cluster("zionex"),
        global_batch=65536,
        statistics=statistics,
        optimizer=optimizer,
        search=SearchSettings(steps=20_000),
    )
    plan.check(tables)
    assert plan.estimate.gap < 0.02


@pytest.mark.slow
def test_tables_that_fill_two_memories_are_planned_near_a_bound_that_knows_packing() -> None:
    file = read_table_file(find_table_file("neo-f"))
    plan = make_plan(
        file.tables,
        catalog().cluster("zionex"),
        global_batch=65536,
        statistics=file.statistics,
        exchange=file.exchange,
        search=SearchSettings(steps=1000),
    )
    plan.check(file.tables)
    assert plan.estimate.gap < 0.4
    assert {placement.tier for placement in plan.placements} == {"hbm", "ddr"}


@pytest.mark.slow
def test_as_many_workers_as_tables_are_planned_near_the_bound() -> None:
    tables, statistics = usual_tables(1000)
    plan = make_plan(
        tables,
        catalog().cluster("dgx-a100"),
        global_batch=524_288,
        statistics=statistics,
        search=SearchSettings(steps=400),
    )
    plan.check(tables)
    assert plan.estimate.gap < 0.12
