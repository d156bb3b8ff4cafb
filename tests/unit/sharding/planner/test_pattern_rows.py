"""Rows of the bound that know what fits on a worker together: what they say is true of all that fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing_bound import NO_CAP, NO_FLOOR, tight
from test_planner_search import optimum

from megalith.sharding.planner.bound.branch_and_bound import lower_bound
from megalith.sharding.planner.bound.pattern_rows import (
    PatternRow,
    PatternRows,
    best_values,
    patterns_of,
    worth_inside,
)
from megalith.sharding.planner.bound.relaxation import PlanRelaxation
from megalith.sharding.planner.bound.table_classes import KindOptions
from megalith.sharding.planner.search import StepClock
from megalith.sharding.planner.types import NUM_PHASES

share = st.floats(0.0, 1.0)
shares = st.tuples(share, share)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(shares, st.floats(0.0, 9.0)), min_size=1, max_size=5),
    st.lists(shares, min_size=1, max_size=12),
    st.booleans(),
)
def test_shards_that_fit_on_a_worker_are_worth_one_at_most(
    items: list[tuple[tuple[float, float], float]], shards: list[tuple[float, float]], with_items: bool
) -> None:
    sizes = np.maximum(np.array([size for size, _ in items]), 0.05)
    demand = np.array([amount for _, amount in items])
    patterns, known = patterns_of(sizes, 20_000)
    sizes, demand = sizes[:known], demand[:known]
    values = best_values(patterns[:, :known], sizes, demand)
    # Items themselves fill workers best.
    candidates = np.concatenate((sizes, np.array(shards))) if with_items else np.array(shards)
    held, kept = np.zeros(2), []
    for size in candidates:
        if (held + size <= 1.0).all():
            held += size
            kept.append(size)
    if kept and known:
        assert worth_inside(np.array(kept), sizes, values).sum() <= 1 + 1e-9


def test_values_say_how_many_workers_items_need() -> None:
    # The first fills one memory and needs some of the other, which the second fills: no worker takes both.
    sizes = np.array([[0.7, 0.1], [0.0, 0.95]])
    values = best_values(patterns_of(sizes, 100)[0], sizes, np.array([16.0, 6.0]))
    assert values @ np.array([16.0, 6.0]) == pytest.approx(22.0)
    # What is smaller than an item is worth nothing, what holds one as much as that.
    assert worth_inside(np.array([[0.6, 0.1], [0.8, 0.2], [0.9, 1.0]]), sizes, values) == pytest.approx(
        [0, 1, 1]
    )


def test_an_option_is_worth_what_its_blocks_are() -> None:
    problem = tight([(20_000, 12, 3.0, 1.05), (5000, 7, 1.0, 0.0)], 4, 2, 2, 1.5)
    rows = PatternRows(problem, KindOptions(problem, np.arange(problem.num_tables)))
    columns, room = (NUM_PHASES, NUM_PHASES + 1), tuple(problem.capacity.tolist())
    row = PatternRow(columns, room, ((0.02, 0.2), (0.3, 0.0)), (0.25, 0.3))
    for option in range(len(problem.options)):
        blocks = problem.blocks(option)[:, :, NUM_PHASES:].reshape(-1, 2) / problem.capacity
        worth = worth_inside(blocks, np.array(row.sizes), np.array(row.values)).sum()
        assert rows.counts(row)[option] == pytest.approx(worth)


def test_caches_and_tables_that_share_a_memory_raise_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tight([(30_000, 8, 4.0, 1.05)] * 2 + [(9000, 8, 9.0, 0.0)], 2, 1, 2, 1.2)
    known = PlanRelaxation(problem).solve(NO_FLOOR, NO_CAP)
    bound = lower_bound(problem, StepClock(1.0).after(60))
    monkeypatch.setattr(PatternRows, "violated", lambda *_: [])
    without = PlanRelaxation(problem).solve(NO_FLOOR, NO_CAP)
    assert known is not None
    assert without is not None
    assert bound is not None
    assert known.seconds > without.seconds * 1.001
    assert bound.seconds <= optimum(problem) * (1 + 1e-9)
