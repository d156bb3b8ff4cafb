"""Tables put in and out of a plan: the native search takes the very decisions of its twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.sharding.reinsertion import (
    InsertionPlan,
    InsertionProblem,
    InsertionSearch,
    reinsert_tables,
)
from megalith.ops.sharding.reinsertion_twin import reinsert_tables_twin

PHASES = 4


def drawn_problem(
    draw: np.random.Generator, workers: int, per_node: int, tables: int, tiers: int, doublings: int
) -> InsertionProblem:
    """Options of one worker, a node, or all, whose blocks come in two sizes."""
    first, width, counts, starts, shards = [0], [], [], [], []
    for _ in range(tables):
        options = int(draw.integers(1, 6))
        for _ in range(options):
            span = int(draw.choice([1, 1, per_node, workers]))
            groups = 1 if span == workers else workers // span
            wide = int(draw.integers(1, groups + 1))
            narrow = int(draw.integers(0, groups + 1 - wide))
            width.append(span)
            counts.append((wide, narrow))
            large = draw.uniform(0.0, 1.0, (span, PHASES + tiers)) / (wide + narrow)
            starts.append((len(shards), len(shards) + span))
            shards += [*large, *(draw.uniform(0.1, 1.0) * large)]
        first.append(first[-1] + options)
    price = draw.uniform(0.0, 0.05, first[-1])
    by_price = [begin + np.argsort(price[begin:end]) for begin, end in pairwise(first)]
    limit = draw.uniform(0.5, 1.5, PHASES + draw.choice([0, tiers])) * tables / workers / 2
    return InsertionProblem(
        first=np.array(first),
        candidates=np.concatenate(by_price),
        width=np.array(width),
        counts=np.array(counts),
        starts=np.array(starts),
        shards=np.array(shards),
        price=price,
        size=draw.uniform(size=first[-1]),
        scale=1 / limit,
        value=draw.uniform(0.0, 2.0, len(limit)),
        capacity=np.full(tiers, draw.uniform(0.8, 3.0) * tables / workers + 0.5),
        level=float(draw.choice([0.0, 1.0])),
        doublings=doublings,
    )


def empty_plan(problem: InsertionProblem, workers: int) -> InsertionPlan:
    tables = len(problem.first) - 1
    blocks = problem.counts.sum(axis=1)
    most = [blocks[begin:end].max() for begin, end in pairwise(problem.first)]
    return InsertionPlan(
        np.full(tables, -1),
        np.concatenate(([0], np.cumsum(most))),
        np.zeros(int(sum(most)), dtype=np.int64),
        np.zeros((workers, problem.shards.shape[1])),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([(4, 2), (6, 3), (16, 4), (24, 1)]),
    st.integers(1, 12),
    st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from([0, 2, 4]),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([0, 3, 20]),
)
def test_native_matches_twin(
    seed: int,
    workers: tuple[int, int],
    tables: int,
    tiers: int,
    doublings: int,
    window: int,
    slack: float,
    exchanges: int,
) -> None:
    draw = np.random.default_rng(seed)
    problem = drawn_problem(draw, *workers, tables, tiers, doublings)
    search = InsertionSearch(30, seed, 3, 2, window, slack, exchanges, exchange_slack=3 * slack)
    order = draw.permutation(tables)
    plans = [empty_plan(problem, workers[0]) for _ in range(2)]
    found = [
        run(problem, plan, order, search)
        for run, plan in zip((reinsert_tables, reinsert_tables_twin), plans, strict=True)
    ]
    assert found[0] == found[1]
    assert (plans[0].choice == plans[1].choice).all()
    assert (plans[0].groups == plans[1].groups).all()
    assert (plans[0].loads == plans[1].loads).all()
    # Twice as long continues from where it ended, with no table lost and no memory exceeded.
    if found[0][0] == tables:
        reinsert_tables(problem, plans[0], np.empty(0, dtype=np.int64), search)
        check_plan(problem, plans[0])


def check_plan(problem: InsertionProblem, plan: InsertionPlan) -> None:
    loads = np.zeros_like(plan.loads)
    for table, option in enumerate(plan.choice.tolist()):
        assert problem.first[table] <= option < problem.first[table + 1]
        width, counts = int(problem.width[option]), problem.counts[option]
        begin = plan.group_first[table]
        groups = plan.groups[begin : begin + counts.sum()].tolist()
        assert len(set(groups)) == len(groups)
        for number, group in enumerate(groups):
            start = problem.starts[option, int(number >= counts[0])]
            loads[group * width : (group + 1) * width] += problem.shards[start : start + width]
    assert np.allclose(loads, plan.loads, rtol=1e-9, atol=1e-12)
    assert (loads[:, PHASES:] <= problem.capacity * (1 + 1e-9)).all()
