"""Plans by taking tables out and putting them in again: valid, never worse, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_packing_bound import shapes, tight
from test_planner_search import optimum, problem_of

from megalith.bench.plan import usual_tables
from megalith.hardware.catalog import catalog
from megalith.sharding.planner import SearchSettings, make_plan
from megalith.sharding.planner.bound.branch_and_bound import lower_bound
from megalith.sharding.planner.enumerate import slice_widths, unequal_cuts
from megalith.sharding.planner.estimate.predict import predict_step
from megalith.sharding.planner.loads import fits, loads_of, solution_seconds
from megalith.sharding.planner.partition.greedy import place_balanced
from megalith.sharding.planner.partition.insertion_state import InsertionState
from megalith.sharding.planner.partition.many_workers import (
    first_room,
    planned_for_many,
    with_fillers,
    within_limits,
)
from megalith.sharding.planner.partition.reinsertion import begun_plans, reinserted
from megalith.sharding.planner.search import MIN_DIM, StepClock
from megalith.sharding.planner.types import (
    NUM_PHASES,
    LowerBound,
    PlacementProblem,
    PlacementSolution,
)

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def bound_of(problem: PlacementProblem) -> LowerBound:
    bound = lower_bound(problem, StepClock(1.0).after(60))
    assert bound is not None
    return bound


def check(problem: PlacementProblem, solution: PlacementSolution) -> None:
    """Every table has an option of its own and distinct groups, and memory suffices."""
    for table, option in enumerate(solution.choice.tolist()):
        assert problem.table[option] == table
        groups = solution.groups[table]
        assert len(groups) == problem.counts[option].sum() == len(set(groups.tolist()))
        assert groups.max() < problem.num_groups(option)
    assert fits(problem, loads_of(problem, solution))


def many_tables(count: int, size: int) -> PlacementProblem:
    draw = np.random.default_rng(count)
    return problem_of(
        [(int(10 ** draw.uniform(3, 5)), 64, float(draw.uniform(1, 30)), 1.05) for _ in range(count)],
        size,
        per_node=8,
    )


@few
@given(
    st.lists(shapes, min_size=2, max_size=3),
    st.sampled_from([(2, 2), (2, 1)]),
    st.sampled_from([1, 2]),
    st.floats(1.1, 2.5),
)
def test_plans_in_short_memory_fit_and_are_never_quicker_than_the_best(
    tables: list[tuple[int, int, float, float]], workers: tuple[int, int], tiers: int, room: float
) -> None:
    problem = tight(tables, *workers, tiers, room)
    bound = lower_bound(problem, StepClock(1.0).after(60))
    found = None if bound is None else reinserted(problem, bound, StepClock(1.0), 30)
    if bound is not None and found is not None:
        check(problem, found)
        assert solution_seconds(problem, found) >= optimum(problem) * (1 - 1e-9)


def test_plans_in_short_memory_are_the_same_every_time() -> None:
    problem = tight([(30_000, 16, 4.0, 1.05)] * 6 + [(8000, 8, 9.0, 0.0)] * 5, 4, 2, 2, 1.5)
    bound = bound_of(problem)
    found = [reinserted(problem, bound, StepClock(1.0), 60) for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    check(problem, found[0])
    assert (found[0].choice == found[1].choice).all()
    assert all((one == other).all() for one, other in zip(found[0].groups, found[1].groups, strict=True))


def test_most_plans_in_short_memory_are_begun_with_blocks_that_span_a_node() -> None:
    problem = tight([(30_000, 16, 4.0, 1.05)] * 6 + [(8000, 8, 9.0, 0.0)] * 5, 4, 2, 2, 1.5)
    begun = list(begun_plans(problem, bound_of(problem), StepClock(1.0).after(30)))
    single = [bool(usable[problem.width == 1].any()) for _, _, usable in begun]
    assert begun
    assert sum(single) < len(begun) / 4
    for seconds, solution, usable in begun:
        check(problem, solution)
        assert usable[solution.choice].all()
        assert seconds == pytest.approx(solution_seconds(problem, solution), rel=1e-9)


def test_tables_that_do_not_fit_are_not_put_in() -> None:
    problem = tight([(20_000, 8, 2.0, 0.0)] * 3, 2, 1, 1, 1.2)
    whole = np.array([option.kind == "table_wise" for option in problem.options])
    state = InsertionState(problem, np.zeros(len(whole)), whole)
    assert not state.fill(np.ones(NUM_PHASES), 0.5)


def test_a_search_within_limits_never_loses_a_table_and_never_ends_slower() -> None:
    problem = many_tables(30, 24)
    bound = bound_of(problem)
    start = place_balanced(problem, bound.choice)
    assert start is not None
    found = [within_limits(problem, bound, start, StepClock(1.0).after(10)) for _ in range(2)]
    check(problem, found[0])
    assert solution_seconds(problem, found[0]) < solution_seconds(problem, start)
    assert (found[0].choice == found[1].choice).all()


def test_limits_leave_more_room_in_proportion_to_short_phases() -> None:
    problem = many_tables(30, 24)
    bound = bound_of(problem)
    room, seconds = first_room(problem, bound), bound.phase_seconds
    order = np.argsort(seconds)
    assert (np.diff((room / seconds)[order]) < 0).all()
    assert (np.diff(room[order]) > 0).all()


def test_some_tables_are_cut_into_small_slices_to_fill_what_others_leave() -> None:
    problem = many_tables(40, 32)
    bound = bound_of(problem)
    choice = with_fillers(problem, bound)
    longest = int(np.argmax(problem.weights * bound.phase_seconds))
    changed = np.flatnonzero(choice != bound.choice)
    assert 0 < len(changed) < problem.num_tables / 2
    assert (problem.table[choice] == np.arange(problem.num_tables)).all()
    assert (problem.peak[choice[changed], longest] < problem.peak[bound.choice[changed], longest]).all()


def test_without_time_the_start_is_the_plan() -> None:
    problem = many_tables(30, 24)
    bound = bound_of(problem)
    found = planned_for_many(problem, bound, StepClock(1.0).after(0))
    assert found is not None
    check(problem, found)


@pytest.mark.parametrize("improve", [True, False])
def test_more_workers_than_tables_are_planned(improve: bool) -> None:
    tables, statistics = usual_tables(40)
    plans = [
        make_plan(
            tables,
            catalog().cluster("dgx-a100"),
            world_size=264,
            global_batch=65_536,
            statistics=statistics,
            search=SearchSettings(steps=40, improve=improve),
        )
        for _ in range(2)
    ]
    plans[0].check(tables)
    assert plans[0].placements == plans[1].placements
    assert plans[0].estimate.gap >= 0


@pytest.mark.parametrize("dim", [5, 16, 93, 96, 256])
def test_unequal_slices_cover_a_table_and_differ_by_more_than_equal_ones(dim: int) -> None:
    cuts = unequal_cuts(dim, 92)
    assert len(set(cuts)) == len(cuts)
    for option in cuts:
        widths = slice_widths(dim, option)
        assert sum(widths) == dim
        assert len(widths) == option.columns
        assert 92 >= widths[0] > widths[-1] + 1 >= MIN_DIM + 1
        assert set(widths[:-1]) == {widths[0]}


def test_plans_for_many_workers_have_slices_of_unequal_widths_and_cost_what_was_said() -> None:
    tables, statistics = usual_tables(60, 3)
    given = {"global_batch": 4096, "statistics": statistics}
    search = SearchSettings(seconds=1.0, steps=20)
    plans = [make_plan(tables, "dgx-a100", world_size=264, search=search, **given) for _ in range(2)]
    assert plans[0].placements == plans[1].placements
    unequal = 0
    for placement in plans[0].placements:
        widths = {shard.dim for shard in placement.shards}
        unequal += placement.kind == "column_wise" and max(widths) > min(widths) + 1
    assert unequal > 0
    predicted = predict_step(tables, plans[0], catalog().cluster("dgx-a100"), **given)
    assert predicted["step_seconds"] == pytest.approx(plans[0].estimate.step_seconds, rel=1e-9)
