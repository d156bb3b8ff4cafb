"""The bound where memory is short or tables are many: never above the best of all plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_planner_search import optimum, problem_of

from megalith.core.schema import TableSpec
from megalith.hardware.catalog import catalog
from megalith.sharding.planner.bound import branch_and_bound
from megalith.sharding.planner.bound.branch_and_bound import lower_bound
from megalith.sharding.planner.bound.packing_rows import MOST_PARTS, PackingRow, PackingRows
from megalith.sharding.planner.bound.relaxation import PlanRelaxation
from megalith.sharding.planner.bound.table_classes import KindOptions
from megalith.sharding.planner.enumerate import OptionEnumerator
from megalith.sharding.planner.estimate.estimator import CostEstimator
from megalith.sharding.planner.inputs import plan_inputs
from megalith.sharding.planner.search import StepClock
from megalith.sharding.planner.statistics import zipf_statistics
from megalith.sharding.planner.types import NUM_PHASES, MemoryTiers, PlacementProblem, Workload

few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
shapes = st.tuples(
    st.integers(2000, 60_000), st.integers(4, 12), st.floats(0.5, 20), st.sampled_from([0.0, 1.05])
)
NO_FLOOR, NO_CAP = np.zeros(NUM_PHASES), np.full(NUM_PHASES, np.inf)


def tight(tables: list[tuple[int, int, float, float]], size: int, per_node: int, tiers: int, room: float):
    """Tables on workers whose memory together is so many times what all tables need, half of it on each of
    two tiers."""
    specs = [
        TableSpec(name=f"t{number}", rows=rows, dim=dim, features=(f"f{number}",))
        for number, (rows, dim, _, _) in enumerate(tables)
    ]
    statistics = {
        f"t{number}": zipf_statistics(rows, lookups, skew)
        for number, (rows, _, lookups, skew) in enumerate(tables)
    }
    needed = sum(spec.weight_bytes + 4 * spec.rows for spec in specs)
    cluster = catalog().cluster("zionex")
    memory = tuple(
        replace(tier, bytes=int(room * needed / size / tiers / 0.8)) for tier in cluster.device.memory[:tiers]
    )
    inputs = plan_inputs(
        specs,
        replace(cluster, device=replace(cluster.device, memory=memory)),
        Workload(512),
        world_size=size,
        workers_per_node=per_node,
        statistics=statistics,
    )
    options = OptionEnumerator(6).enumerate(inputs, MemoryTiers(range(tiers), [0.1]))
    return CostEstimator().estimate(inputs, options)


@few
@given(
    st.lists(shapes, min_size=2, max_size=3),
    st.sampled_from([(2, 2), (2, 1)]),
    st.sampled_from([1, 2]),
    st.floats(1.02, 1.8),
)
def test_the_bound_is_below_the_best_plan_where_memory_is_short(
    tables: list[tuple[int, int, float, float]], workers: tuple[int, int], tiers: int, room: float
) -> None:
    problem = tight(tables, *workers, tiers, room)
    best = optimum(problem)
    bound = lower_bound(problem, StepClock(1.0).after(60))
    if bound is None:
        assert best == np.inf
    else:
        assert bound.seconds <= best * (1 + 1e-9)


@few
@given(st.lists(shapes, min_size=1, max_size=2), st.floats(1.05, 2.0))
def test_the_same_holds_for_blocks_that_span_nodes(
    tables: list[tuple[int, int, float, float]], room: float
) -> None:
    problem = tight(tables, 4, 2, 1, room)
    best = optimum(problem)
    bound = lower_bound(problem, StepClock(1.0).after(60))
    assert best == np.inf if bound is None else bound.seconds <= best * (1 + 1e-9)


@few
@given(st.lists(shapes, min_size=1, max_size=3), st.integers(2, 3), st.sampled_from([1, 30, 300]))
def test_quick_cases_are_below_the_best_plan_too(
    tables: list[tuple[int, int, float, float]], size: int, steps: int
) -> None:
    problem = problem_of(tables, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch_and_bound, "_LARGE", 0)
        bound = lower_bound(problem, StepClock(1.0).after(steps))
    assert bound is not None
    assert bound.seconds <= optimum(problem) * (1 + 1e-9)
    assert bound.root_seconds <= bound.seconds * (1 + 1e-9)


def three_large_tables() -> PlacementProblem:
    """Three tables of 0.6 of a worker each, which cannot be cut, on two workers with room for 1.9."""
    tables = [(10_000, 8, 5.0, 0.0)] * 3
    problem = tight(tables, 2, 1, 1, 2 / 1.8)
    whole = np.array([option.kind == "table_wise" for option in problem.options])
    # Shards of more bytes than there are fit on no worker.
    return replace(problem, peak=np.where(whole[:, None], problem.peak, 2 * problem.capacity.sum()))


def test_blocks_of_more_than_half_a_worker_need_one_each() -> None:
    problem = three_large_tables()
    sizes = problem.total[problem.first[:-1], NUM_PHASES] / problem.capacity[0]
    assert sizes.sum() < problem.world_size
    assert (sizes > 0.5).all()
    assert lower_bound(problem, StepClock(1.0).after(60)) is None


def test_without_packing_rows_they_seem_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackingRows, "violated", lambda *_: [])
    assert lower_bound(three_large_tables(), StepClock(1.0).after(60)) is not None


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12), st.integers(1, MOST_PARTS))
def test_what_fits_on_a_worker_never_breaks_a_row(sizes: list[float], parts: int) -> None:
    held, kept = 0.0, []
    for size in sizes:
        if held + size <= 1.0:
            held += size
            kept.append(size)
    counts = sum(max(0.0, np.ceil((parts + 1) * size / (1 + 2e-9)) - 1) for size in kept)
    assert counts <= parts


def test_counts_of_an_option_are_those_of_its_blocks() -> None:
    problem = tight([(20_000, 12, 3.0, 1.05), (5000, 7, 1.0, 0.0)], 4, 2, 1, 1.5)
    kinds = KindOptions(problem, np.arange(problem.num_tables))
    packing, row = PackingRows(problem, kinds), PackingRow(NUM_PHASES, float(problem.capacity[0]), 3)
    place = PackingRow(NUM_PHASES, float(problem.capacity[0]), 0, 1)
    for option in range(len(problem.options)):
        shares = problem.blocks(option)[:, :, NUM_PHASES] / problem.capacity[0]
        assert packing.counts(row)[option] == np.maximum(np.ceil(4 * shares * (1 - 1e-9)) - 1, 0).sum()
        second = shares[:, 1::2].sum() if shares.shape[1] > 1 else 0.0
        assert packing.counts(place)[option] == pytest.approx(second)


def test_tables_that_are_alike_are_solved_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [(30_000, 16, 4.0, 1.05)] * 5 + [(8000, 8, 9.0, 0.0)] * 3
    problem = tight(tables, 4, 2, 2, 1.3)
    together = PlanRelaxation(problem)
    assert len(set(together.alike.tolist())) == 2
    apart = PlanRelaxation(problem)
    apart.alike = np.arange(problem.num_tables)
    found = [one.solve(NO_FLOOR, NO_CAP) for one in (together, apart)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].seconds == pytest.approx(found[1].seconds, rel=1e-6)
    shares = np.add.reduceat(found[0].mixture, problem.first[:-1])
    assert shares == pytest.approx(np.ones(8), abs=1e-6)


def test_equal_tables_are_described_as_if_each_were_alone() -> None:
    problem = tight([(30_000, 16, 4.0, 1.05)] * 3 + [(8000, 8, 9.0, 0.0)] * 2, 4, 2, 2, 1.3)
    inputs = plan_inputs(
        problem.tables,
        problem.topology.cluster,
        Workload(512),
        statistics={table.name: zipf_statistics(table.rows, 4.0, 1.05) for table in problem.tables},
    )
    shared = OptionEnumerator(6).enumerate(inputs, MemoryTiers(range(2), [0.1]))
    assert shared[0] is shared[2]
    # Lists of their own are described one by one.
    together, apart = (
        CostEstimator().estimate(inputs, options) for options in (shared, [*map(list, shared)])
    )
    for name in ("shards", "starts", "counts", "width", "total", "peak", "table", "first"):
        assert np.array_equal(getattr(together, name), getattr(apart, name)), name
    # Row parts begin at another worker of the node for each table.
    rows = next(o for o in together.options_of(0) if together.options[o].kind == "table_row")
    other = rows + int(together.first[1])
    assert not np.array_equal(together.blocks(rows), together.blocks(other))
