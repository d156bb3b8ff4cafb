"""Goodput and shared links: what a step becomes in operation."""

from __future__ import annotations

from math import sqrt

import pytest

from megalith.core.errors import ConfigError
from megalith.explore import load_job
from megalith.explore.job import Reliability
from megalith.explore.operation.goodput import checkpoint_bytes, goodput
from megalith.explore.operation.link_sharing import predict_shared

LLAMA = {"model": "llama3-405b", "cluster": "dgx-h100", "global_batch": 2048}


def test_llama_3_makes_progress_more_than_nine_tenths_of_the_time() -> None:
    found = goodput(load_job(LLAMA), 16384)
    # 419 interruptions in 54 days.
    assert 24 * 54 / found.hours_between_failures == pytest.approx(419, rel=0.01)
    assert 0.9 < found.share < 1


def test_the_parts_add_up_and_grow_with_the_cluster() -> None:
    job = load_job(LLAMA)
    shares = [goodput(job, devices) for devices in (1024, 16384, 98304)]
    for found in shares:
        assert found.share + sum(found.lost.values()) == pytest.approx(1)
    assert shares[0].share > shares[1].share > shares[2].share


def test_the_interval_is_youngs_and_no_other_is_better() -> None:
    job = load_job(LLAMA)
    best = goodput(job, 16384)
    assert best.interval_seconds == pytest.approx(
        sqrt(2 * best.checkpoint_seconds * 3600 * best.hours_between_failures)
    )
    for factor in (0.5, 2.0):
        other = Reliability(checkpoint_seconds=factor * best.interval_seconds)
        assert goodput(job, 16384, other).share < best.share


def test_nothing_is_lost_where_nothing_fails() -> None:
    never = Reliability(device_hours_between_failures=1e15, straggler_share=0)
    assert goodput(load_job(LLAMA), 1024, never).share == pytest.approx(1, abs=1e-4)


def test_a_checkpoint_is_weights_and_optimizer_once() -> None:
    assert checkpoint_bytes(load_job(LLAMA)) == pytest.approx(405.9e9 * 14, rel=0.01)


def replicas(name: str, gigabits: float = 100) -> object:
    levels = [
        {"name": "node", "count": 8, "link": "nvlink4"},
        {"name": "zone", "count": 4, "link": "ib-ndr400x8"},
        {"name": "site", "count": 2, "link": "wan-1000km", "gigabits_per_second": gigabits},
    ]
    return load_job(
        {
            "name": name,
            "model": "llama3-8b",
            "cluster": {"device": "h100-80g", "levels": levels},
            "parallel": {"dp": 64, "global_batch": 128, "micro_batch": 1, "sharding": "zero1"},
        }
    )


def test_jobs_on_one_link_slow_each_other_down() -> None:
    first, second = predict_shared([replicas("a"), replicas("b")])  # type: ignore[list-item]
    assert first.shared.step_seconds > first.alone.step_seconds
    assert first.shared == second.shared
    # Never below an equal share.
    assert first.gigabits_per_second >= 50


def test_links_that_differ_are_not_shared() -> None:
    with pytest.raises(ConfigError, match="need the same outermost level"):
        predict_shared([replicas("a"), replicas("b", 200)])  # type: ignore[list-item]
