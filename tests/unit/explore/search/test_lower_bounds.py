"""Lower bounds hold: no prediction is below the bound of any node on the way to its plan."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest
from small_jobs import DENSE, SPARSE, job

from megalith.explore.candidates import lower_bound_seconds
from megalith.explore.job import Job
from megalith.explore.load import load_job, resolve_cluster
from megalith.explore.pipeline.costs import StepCosts
from megalith.explore.pipeline.schedules import build_schedule
from megalith.explore.pipeline.simulate import simulate
from megalith.explore.predict import predict
from megalith.explore.search.bounds.lower_bounds import LowerBounds
from megalith.explore.search.bounds.order_times import order_seconds
from megalith.explore.search.bounds.pipeline_bounds import PipelineBounds
from megalith.explore.search.bounds.pipeline_times import PipelineTimes
from megalith.explore.search.evaluate import evaluate
from megalith.explore.search.space.decisions import PlanCandidate
from megalith.explore.search.space.dominance import undominated
from megalith.explore.search.space.layer_partition import spread_layers
from megalith.explore.search.space.restriction import Restriction
from megalith.explore.search.space.search_space import SearchSpace

JOBS: dict[str, dict[str, Any]] = {
    "dense across regions": {"model": DENSE, "batch": 32},
    "sparse across regions": {"model": SPARSE, "batch": 16},
    "head heavier than layers": {"model": {**DENSE, "layers": 10, "vocab": 256000}, "batch": 12},
    "larger than a device": {
        "model": {**DENSE, "hidden": 8192, "layers": 36, "heads": 64, "ffn": 28672},
        "counts": (4, 4, 3),
        "batch": 24,
    },
}


def space_of(asked: Job) -> SearchSpace:
    cluster = resolve_cluster(asked.cluster, asked.hardware)
    networks = tuple(undominated(SearchSpace(asked, cluster).networks, cluster))
    return SearchSpace(asked, cluster, Restriction(networks=networks))


def walk(space: SearchSpace, draw: random.Random) -> list[PlanCandidate]:
    """A path from a root to a plan."""
    path = [draw.choice(list(space.roots()))]
    while children := space.branch(path[-1]):
        path.append(draw.choice(children))
    return path


@pytest.mark.parametrize("name", JOBS)
def test_no_plan_is_faster_than_its_bounds(name: str) -> None:
    space = space_of(job(**JOBS[name]))
    check(space, count=60, seed=1)


@pytest.mark.slow
def test_no_plan_of_a_real_scenario_is_faster_than_its_bounds() -> None:
    check(space_of(load_job("70b-3-regions-3k-60ms")), count=40, seed=2)


def test_bounds_hold_where_replicas_may_be_cheap() -> None:
    space = space_of(job(batch=16, allow_compression=True, allow_local_steps=True))
    assert len(space.networks) > 2
    check(space, count=40, seed=3)


def check(space: SearchSpace, count: int, seed: int) -> None:
    bounds, draw = LowerBounds(space), random.Random(seed)
    runs = 0
    for _ in range(count):
        path = walk(space, draw)
        highest = max(bounds(node) for node in path)
        evaluation = evaluate(space, predict, path[-1])
        assert highest <= evaluation.seconds * (1 + 1e-9), path[-1]
        runs += evaluation.seconds < inf
    assert runs > count / 10


def test_bounds_are_near_the_truth_where_the_pipeline_rules() -> None:
    fixed = {"pp": 4, "micro_batch": 1, "sharding": "none", "tp": 2, "cp": 1, "overlap": 1}
    space = space_of(job(batch=32, fixed=fixed))
    bounds = LowerBounds(space)
    shares = [bounds(plan) / evaluate(space, predict, plan).seconds for plan in space.every_plan()]
    assert sum(shares) / len(shares) > 0.6


@pytest.mark.parametrize("micro_batches", [2, 4, 16])
@pytest.mark.parametrize("schedule", ["breadth-first", "interleaved"])
def test_chunks_are_bounded_by_the_way_through_all_of_them(schedule: str, micro_batches: int) -> None:
    """With fewer micro-batches than stages, devices idle most of a step: work alone says little."""
    stages, chunks = 4, 3
    devices = [tuple(range(device, stages * chunks, stages)) for device in range(stages)]
    times = PipelineTimes.of([1.0] * 12, [1.2] * 12, [0.8] * 12, devices)
    bounds = PipelineBounds(times, (0.0,) * 12, 0.0, False, micro_batches, stages, chunks, (0, 2, 3))
    if schedule == "interleaved" and micro_batches % stages:
        return
    order = build_schedule(schedule, stages, micro_batches, chunks)
    step = simulate(order, StepCosts.uniform(12, 1.0, 1.2, 0.8)).step_seconds
    assert 0.9 * step <= bounds.lower_bound(schedule) <= step * (1 + 1e-9)


def test_the_zero_bubble_family_is_bounded_by_its_order() -> None:
    times = PipelineTimes.of([1.0] * 8, [1.5] * 8, [0.5] * 8, [(device, 7 - device) for device in range(4)])
    order = order_seconds(times, "zb-v", 4, 6)
    assert order > 6 * times.busiest
    assert order <= simulate(build_schedule("zb-v", 4, 6), StepCosts.uniform(8, 1.0, 1.5, 0.5)).step_seconds
    assert order_seconds(times, "interleaved", 4, 6) == 0.0


def test_ours_is_at_least_the_cost_model_s_own_bound() -> None:
    space = space_of(job(batch=16))
    bounds, draw = LowerBounds(space), random.Random(4)
    for _ in range(20):
        plan = walk(space, draw)[-1]
        if bounds(plan) < inf:
            assert bounds(plan) >= (1 - 1e-9) * lower_bound_seconds(space.to_job(plan))


@pytest.mark.parametrize(("layers", "devices", "chunks"), [(30, 4, 1), (126, 16, 1), (80, 16, 5), (61, 8, 2)])
def test_layers_are_spread_as_evenly_as_can_be(layers: int, devices: int, chunks: int) -> None:
    spread = spread_layers(layers, devices, chunks)
    loads = [sum(spread[device::devices]) for device in range(devices)]
    assert sum(spread) == layers
    assert max(loads) - min(loads) <= 1


def test_a_heavy_head_takes_layers_off_its_stage() -> None:
    assert spread_layers(30, 4, head=1.5) == (8, 8, 8, 6)
    assert spread_layers(80, 16, 5, head=1.2)[-1] == 0
