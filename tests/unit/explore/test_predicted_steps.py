"""One prediction: what it holds, what it responds to, and one sentence where there can be none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from example_job import EXAMPLE, ask

from megalith.core.errors import ConfigError, MegalithError, PlanError
from megalith.explore import Job, load_job, lower_bound_seconds, predict
from megalith.explore.predict import DoesNotFitError, filled_job


def test_the_example_of_the_design_prints_its_keys() -> None:
    prediction = ask()
    found = json.loads(json.dumps(prediction.to_dict()))
    assert found["step_seconds"] == pytest.approx(13.75, rel=0.05)
    for key in (
        "model_tflops_per_gpu",
        "hardware_tflops_per_gpu",
        "mfu",
        "memory_bytes_per_device",
        "breakdown",
    ):
        assert found[key]
    assert found["fits"] is True
    assert found["hardware_tflops_per_gpu"] > found["model_tflops_per_gpu"]
    assert "timeline" not in found


def test_flops_follow_narayanan_s_formula() -> None:
    prediction = ask("training.recompute=full")
    hidden, layers, seq, vocab, batch = 12288, 96, 2048, 51200, 64
    block = batch * seq * layers * hidden**2
    model = 72 * block * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    hardware = 96 * block * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
    seconds = prediction.step_seconds * 64 * 1e12
    assert prediction.model_tflops_per_gpu == pytest.approx(model / seconds)
    assert prediction.hardware_tflops_per_gpu == pytest.approx(hardware / seconds)


@pytest.mark.parametrize(
    ("schedule", "vpp", "batch"),
    [
        ("gpipe", 1, 32),
        ("1f1b", 1, 32),
        ("interleaved", 3, 32),
        ("breadth-first", 3, 32),
        ("zb-h1", 1, 32),
        ("zb-h2", 1, 32),
        ("zb-v", 2, 32),
        ("dualpipe", 1, 32),
        ("long-link", 1, 32),
    ],
)
def test_every_schedule_adds_up_and_keeps_above_the_bound(schedule: str, vpp: int, batch: int) -> None:
    overrides = [f"training.schedule={schedule}", f"parallel.vpp={vpp}", f"parallel.global_batch={4 * batch}"]
    overrides += ["parallel.dp=4", "parallel.sharding=zero1"]
    job = load_job(EXAMPLE, [*overrides, "training.recompute=full"])
    prediction = predict(job)
    assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_seconds)
    assert all(seconds > -1e-9 for seconds in prediction.breakdown.values())
    assert 0.5 * prediction.step_seconds < lower_bound_seconds(job) <= prediction.step_seconds


def test_blanks_are_filled_with_what_fits() -> None:
    job = {**EXAMPLE, "parallel": {"tp": 8, "pp": 8, "global_batch": 64}, "training": {"precision": "fp16"}}
    prediction = predict(load_job(job))
    assert prediction.fits
    assert prediction.recompute == "selective"
    without = load_job({**job, "training": {"precision": "fp16", "recompute": "none"}})
    without = filled_job(without, replace(prediction, recompute="none"))
    assert not predict(without, must_fit=False).fits
    fixed = ask()
    assert prediction.step_seconds <= fixed.step_seconds * 1.02
    again = predict(filled_job(load_job(job), prediction))
    assert again.step_seconds == prediction.step_seconds


def test_recorded_steps_keep_their_timeline() -> None:
    timeline = predict(load_job(EXAMPLE), record=True).timeline
    assert timeline is not None
    assert timeline.spans
    assert ask().timeline is None


@pytest.mark.parametrize(
    ("overrides", "error", "sentence"),
    [
        (["parallel.tp=7"], PlanError, r"tp=7 does not divide model.heads=96; take parallel.tp=6"),
        (["parallel.pp=7"], PlanError, r"does not divide model.layers=96; take parallel.pp=8"),
        (
            ["parallel.dp=100", "parallel.global_batch=6400"],
            PlanError,
            r"6400 devices and the cluster has 512; take parallel.dp=8",
        ),
        (
            ["parallel.global_batch=65", "parallel.micro_batch=2"],
            PlanError,
            r"global_batch=65 is not a multiple.*take parallel.global_batch=64",
        ),
        (["parallel.ep=2"], PlanError, r"ep=2 needs a model with experts; take parallel.ep=1"),
        (["training.schedule=1f1b"], PlanError, r"takes parallel.vpp=1, not 3; take parallel.vpp=1"),
        (["cluster.device=a100-80"], ConfigError, r"Unknown device 'a100-80'; did you mean 'a100-80g'"),
        (["parallel.placement=[tp, pp:3, dp]"], ConfigError, r"pp:3"),
        (["parallel.shard_within=planet"], ConfigError, r"no level 'planet'; take one of node, zone"),
        (
            ["parallel.micro_batch=64", "parallel.global_batch=512"],
            DoesNotFitError,
            r"a100-80g has 80.0 GiB.*; take parallel.micro_batch",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence_with_a_way_out(
    overrides: list[str], error: type[MegalithError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as caught:
        ask(*overrides)
    assert "\n" not in str(caught.value)


def test_a_negative_latency_is_refused() -> None:
    levels = [{"name": "node", "count": 8, "link": "nvlink3", "latency_seconds": -1.0}]
    with pytest.raises(ConfigError, match=r"cluster\.levels\.0\.latency_seconds.*greater than or equal to 0"):
        ask(cluster={"device": "a100-80g", "levels": levels})


def test_jobs_are_of_one_type() -> None:
    assert isinstance(load_job(EXAMPLE), Job)
