"""Orders made for given costs: the greedy, and the schedules that hide a slow boundary."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import PlanError
from megalith.explore.pipeline.costs import StepCosts, Transfer
from megalith.explore.pipeline.operations import check_schedule
from megalith.explore.pipeline.schedules import GreedyPolicy, build_schedule, greedy_schedule
from megalith.explore.pipeline.schedules.greedy import POLICIES
from megalith.explore.pipeline.simulate import simulate


def two_sites(devices: int, latency: float, chunks: int = 1) -> StepCosts:
    """Equal stages; the boundary in the middle of the devices is slow, both ways."""
    costs = StepCosts.uniform(devices * chunks, 1.0, 1.0, 1.0, transfer_seconds=0.02)

    def slowed(direction: str) -> tuple[Transfer | None, ...]:
        return tuple(
            Transfer((direction, "wide"), 0.1, latency)
            if boundary % devices == devices // 2 - 1
            else Transfer((direction, boundary), 0.02)
            for boundary in range(devices * chunks - 1)
        )

    return replace(costs, forward_transfers=slowed("there"), backward_transfers=slowed("back"))


@given(
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from(POLICIES),
    st.floats(0.0, 20.0),
)
def test_the_greedy_finishes_within_any_memory_that_holds_one_micro_batch(
    devices: int, micro_batches: int, chunks: int, more: int, policy: GreedyPolicy, latency: float
) -> None:
    costs = two_sites(devices, latency, chunks)
    limit = chunks + more
    schedule = greedy_schedule(costs, devices, micro_batches, chunks, limit, policy=policy)
    check_schedule(schedule)
    assert max(simulate(schedule, costs).peak_activations) <= limit


@given(st.integers(1, 5), st.integers(1, 24))
def test_the_greedy_is_never_slower_than_1f1b_in_the_same_memory(devices: int, micro_batches: int) -> None:
    costs = StepCosts.uniform(devices, 1.0, 1.0, 1.0)
    greedy = simulate(greedy_schedule(costs, devices, micro_batches, 1, devices), costs)
    usual = simulate(build_schedule("1f1b", devices, micro_batches), costs)
    assert greedy.makespan_seconds <= usual.makespan_seconds


@pytest.mark.parametrize("latency", [0.0, 3.0, 10.0])
@pytest.mark.parametrize("micro_batches", [32, 400])
def test_a_long_link_is_hidden_by_micro_batches_in_flight(latency: float, micro_batches: int) -> None:
    costs = two_sites(8, latency)
    usual = simulate(build_schedule("1f1b", 8, micro_batches), costs)
    extra = 10
    schedule = build_schedule("long-link", 8, micro_batches, 1, extra, costs)
    check_schedule(schedule)
    hidden = simulate(schedule, costs)
    assert hidden.step_seconds < usual.step_seconds
    assert max(hidden.peak_activations) <= 8 + extra
    # What remains is filling and emptying the pipeline once.
    assert hidden.step_seconds <= 3 * micro_batches + 7 * 3 + 2 * latency + 12


def test_forwards_run_ahead_before_the_slow_boundary_only() -> None:
    schedule = build_schedule("long-link", 8, 400, 1, 12, two_sites(8, 15.0))
    ahead = [segments[0].repeats for segments in schedule.segments]
    assert ahead[:4] == [19, 18, 17, 16]
    assert ahead[4:] == [3, 2, 1, 0]


def test_without_costs_the_extra_micro_batches_are_spread_evenly() -> None:
    schedule = build_schedule("long-link", 5, 50, 1, 8)
    assert [segments[0].repeats for segments in schedule.segments] == [12, 9, 6, 3, 0]


def test_chunks_share_the_way_over_a_slow_boundary() -> None:
    costs = two_sites(4, 4.0, 2)
    usual = simulate(build_schedule("interleaved", 4, 16, 2), costs)
    schedule = build_schedule("long-link", 4, 16, 2, 4, costs)
    check_schedule(schedule)
    assert simulate(schedule, costs).step_seconds < 0.85 * usual.step_seconds
    check_schedule(build_schedule("long-link", 4, 13, 2, 4, costs))


def test_a_long_step_of_several_chunks_runs_ahead_too() -> None:
    costs = two_sites(4, 4.0, 2)
    usual = simulate(build_schedule("interleaved", 4, 400, 2), costs)
    schedule = build_schedule("long-link", 4, 400, 2, 4, costs)
    check_schedule(schedule)
    hidden = simulate(schedule, costs)
    assert hidden.step_seconds < 0.85 * usual.step_seconds
    assert max(hidden.peak_activations) <= max(usual.peak_activations) + 2 * 4


def test_a_limit_below_one_micro_batch_is_refused_with_the_least() -> None:
    with pytest.raises(PlanError, match="at least 2"):
        greedy_schedule(StepCosts.uniform(4, 1.0, 1.0, 1.0), 2, 4, 2, 1)
    with pytest.raises(PlanError, match="costs are for 3 virtual stages"):
        greedy_schedule(StepCosts.uniform(3, 1.0, 1.0, 1.0), 2, 4, 2, 4)
