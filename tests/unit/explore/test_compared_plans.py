"""Two jobs beside each other."""

from __future__ import annotations

import pytest

from megalith.explore.compare import compare
from megalith.explore.load import load_job


def test_a_job_differs_from_itself_in_nothing() -> None:
    job = load_job("gpt3-175b")
    found = compare(job, job)
    assert found.differences == ()
    assert found.changes == ()
    assert found.speed_up == 1
    assert not found.sure


def test_every_change_on_the_way_is_counted_once() -> None:
    one = load_job("gpt3-175b")
    other = load_job(
        "gpt3-175b", ["cluster.device=h100-80g", "training.recompute=full", "network.routing=ecmp"]
    )
    found = compare(one, other)
    assert [change.sections for change in found.changes] == [("cluster",), ("network",), ("training",)]
    saved = sum(change.saved_seconds for change in found.changes)
    assert saved == pytest.approx(one_step(found.first) - one_step(found.second))
    assert found.changes[0].saved_seconds > 0 > found.changes[-1].saved_seconds


def one_step(side: object) -> float:
    return float(side.prediction.step_seconds)  # type: ignore[attr-defined]


def test_a_change_that_runs_only_with_another_comes_with_it() -> None:
    # A V needs two chunks: the schedule alone makes no plan.
    one = load_job("gpt3-175b", ["parallel.vpp=1", "training.schedule=1f1b"])
    found = compare(one, load_job("gpt3-175b", ["parallel.vpp=2", "training.schedule=zb-v"]))
    assert [change.sections for change in found.changes] == [("training", "parallel")]
    assert found.speed_up > 1


def test_what_a_prediction_filled_in_is_compared_too() -> None:
    one = load_job("gpt3-175b")
    open_size = load_job(
        "gpt3-175b", ["parallel.micro_batch=null", "training.schedule=1f1b", "parallel.vpp=1"]
    )
    found = compare(one, open_size)
    keys = {difference.key: difference for difference in found.differences}
    if "parallel.micro_batch" in keys:
        assert keys["parallel.micro_batch"].second == found.second.prediction.micro_batch


def test_a_job_without_a_plan_is_searched_for_one() -> None:
    levels = [{"name": "node", "count": 4, "link": "nvlink4"}]
    content = {
        "name": "open",
        "model": "llama3-8b",
        "cluster": {"device": "h100-80g", "levels": levels},
        "global_batch": 8,
        "constraints": {"fixed": {"tp": 4, "cp": 1}},
    }
    plan = {**content, "name": "plan", "parallel": {"tp": 4, "global_batch": 8, "micro_batch": 1}}
    said: list[str] = []
    found = compare(load_job(plan), load_job(content), progress=said.append)
    assert found.second.searched
    assert not found.first.searched
    assert found.second.prediction.step_seconds <= found.first.prediction.step_seconds
    assert said
