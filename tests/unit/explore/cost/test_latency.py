"""Latency and overlap as they are: sharded gathers over a wide area, waits by their root, the fast domain."""

from __future__ import annotations

from typing import Any

import pytest

from megalith.explore.load import load_job
from megalith.explore.predict import predict

LATENCY = 1.05e-2


def two_regions(latency: float = LATENCY, gigabits: float = 25600, **changes: Any) -> Any:
    """The cluster of the scenario 70b-2-regions-2k-10ms, all of it one fully-sharded group."""
    job = load_job("70b-2-regions-2k-10ms")
    levels = [level.model_dump(exclude_none=True) for level in job.cluster.levels]
    levels[-1] |= {"gigabits_per_second": gigabits, "latency_seconds": latency}
    return {
        "model": "llama3-70b",
        "cluster": {"device": "h100-80g", "levels": levels},
        **changes,
    }


def zero3(latency: float) -> float:
    parallel = {"tp": 8, "dp": 256, "sharding": "zero3", "micro_batch": 1, "global_batch": 512}
    job = two_regions(latency, parallel=parallel, training={"recompute": "full"})
    return predict(load_job(job), must_fit=False).step_seconds


def test_a_fully_sharded_step_over_two_regions_pays_the_latency_of_480_collectives() -> None:
    # 80 layers, gathered forward and backward and reduced once, for each of two micro-batches.
    paid = zero3(LATENCY) - zero3(1e-5)
    assert paid == pytest.approx(480 * LATENCY, rel=0.35)
    assert paid >= 0.8 * 480 * LATENCY


def test_a_pipeline_over_a_slow_link_is_bound_by_the_link() -> None:
    parallel = {"tp": 8, "pp": 8, "dp": 32, "micro_batch": 1, "global_batch": 2048, "sharding": "zero1"}
    job = two_regions(LATENCY, 400, parallel=parallel, training={"schedule": "1f1b"})
    prediction = predict(load_job(job), must_fit=False)
    level = load_job(job).cluster.levels[-1].name
    assert prediction.bound_by == f"link:{level}"
    assert prediction.breakdown["pipeline_transfer"] > prediction.breakdown["pipeline_bubble"]
    assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_seconds)


def test_replicas_over_a_slow_link_are_bound_by_the_link() -> None:
    parallel = {"tp": 8, "pp": 4, "dp": 64, "micro_batch": 1, "global_batch": 512, "sharding": "zero1"}
    job = two_regions(LATENCY, 400, parallel=parallel, training={"schedule": "1f1b"})
    prediction = predict(load_job(job), must_fit=False)
    assert prediction.bound_by == f"link:{load_job(job).cluster.levels[-1].name}"


def test_tensor_parallel_traffic_overlaps_inside_the_fast_domain_only() -> None:
    def exposed(tp: int, overlap: str) -> float:
        job = {
            "model": "llama3-70b",
            "cluster": "dgx-h100",
            "parallel": {"tp": tp, "dp": 4, "micro_batch": 1, "global_batch": 16},
            "training": {"recompute": "full", "tensor_overlap": overlap},
        }
        return predict(load_job(job), must_fit=False).breakdown["tensor_parallel"]

    assert exposed(8, "ring") < 0.8 * exposed(8, "none")
    assert exposed(16, "ring") == exposed(16, "none")
