"""What a plan holds in memory: sharding, recompute, schedules."""

from __future__ import annotations

import pytest
from example_job import ask


def test_dualpipe_holds_its_weights_twice() -> None:
    common = ["parallel.vpp=1", "training.recompute=full", "parallel.dp=4", "parallel.sharding=zero1"]
    common.append("parallel.global_batch=256")
    plain = ask("training.schedule=1f1b", *common)
    double = ask("training.schedule=dualpipe", *common)
    assert double.memory["weights"] == pytest.approx(2 * plain.memory["weights"], rel=0.1)


def test_more_sharding_holds_less() -> None:
    job = ["parallel.dp=8", "parallel.global_batch=512"]
    sizes = [
        ask(*job, f"parallel.sharding={mode}").memory_bytes_per_device
        for mode in ("none", "zero1", "zero2", "zero3")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_more_recompute_holds_less_and_takes_longer() -> None:
    found = [ask(f"training.recompute={mode}") for mode in ("selective", "full")]
    assert found[0].memory["activations"] > found[1].memory["activations"]
    assert found[0].step_seconds < found[1].step_seconds
