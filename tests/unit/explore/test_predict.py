"""One prediction: what it holds, what it responds to, and one sentence where there can be none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from megalith.core.errors import ConfigError, MegalithError, PlanError
from megalith.explore import Job, Prediction, load_job, lower_bound_seconds, predict
from megalith.explore.predict import DoesNotFitError, filled

# The example of the design: GPT-3 175B of Korthikanti et al. (13.75 s measured).
EXAMPLE: dict[str, Any] = {
    "model": {
        "kind": "transformer",
        "hidden": 12288,
        "layers": 96,
        "heads": 96,
        "kv_heads": 96,
        "ffn": 49152,
        "gated": False,
        "vocab": 51200,
        "seq": 2048,
        "experts": 0,
        "experts_per_token": 0,
    },
    "cluster": {
        "device": "a100-80g",
        "levels": [
            {"name": "node", "count": 8, "link": "nvlink3"},
            {"name": "zone", "count": 64, "link": "ib-hdr200x8"},
        ],
    },
    "parallel": {
        "tp": 8,
        "cp": 1,
        "ep": 1,
        "pp": 8,
        "vpp": 3,
        "dp": 1,
        "sharding": "none",
        "micro_batch": 1,
        "global_batch": 64,
        "sequence_parallel": True,
    },
    "training": {"precision": "fp16", "recompute": "selective", "schedule": "interleaved", "overlap": True},
}


def ask(*overrides: str, **keys: Any) -> Prediction:
    return predict(load_job({**EXAMPLE, **keys}, overrides))


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


def test_dualpipe_holds_its_weights_twice() -> None:
    common = ["parallel.vpp=1", "training.recompute=full", "parallel.dp=4", "parallel.sharding=zero1"]
    common.append("parallel.global_batch=256")
    plain = ask("training.schedule=1f1b", *common)
    double = ask("training.schedule=dualpipe", *common)
    assert double.memory["weights"] == pytest.approx(2 * plain.memory["weights"], rel=0.1)


def test_a_faster_link_never_hurts() -> None:
    def seconds(rate: float) -> float:
        cluster = {**EXAMPLE["cluster"], "levels": [dict(level) for level in EXAMPLE["cluster"]["levels"]]}
        cluster["levels"][1]["gigabits_per_second"] = rate
        return ask("parallel.dp=4", "parallel.global_batch=256", cluster=cluster).step_seconds

    times = [seconds(rate) for rate in (50, 200, 800, 3200)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.02 * times[-1]


def test_latency_loss_and_oversubscription_are_felt_across_sites() -> None:
    base = {
        "model": "llama3-70b",
        "parallel": {"tp": 8, "pp": 4, "dp": 128, "micro_batch": 1, "global_batch": 1024},
    }
    base |= {"training": {"recompute": "full", "overlap": False}}

    def seconds(**changes: Any) -> float:
        levels = [
            {"name": "node", "count": 8, "link": "nvlink4"},
            {"name": "zone", "count": 256, "link": "ib-ndr400x8"},
            {"name": "world", "count": 2, "link": "wan-region", **changes},
        ]
        return predict(load_job({**base, "cluster": {"device": "h100-80g", "levels": levels}})).step_seconds

    plain = seconds()
    assert seconds(latency_seconds=0.06) > plain
    assert seconds(loss=1e-3) > plain
    assert seconds(oversubscription=8) > plain


def test_hashing_is_worse_than_spraying_across_nodes() -> None:
    def seconds(routing: str) -> float:
        return ask("parallel.dp=8", "parallel.global_batch=512", f"network.routing={routing}").step_seconds

    assert seconds("ecmp") > seconds("adaptive") >= seconds("spray")


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


def test_local_steps_and_compression_spare_the_slow_link() -> None:
    base = {
        "model": "llama3-8b",
        "cluster": "two-regions",
        "parallel": {"tp": 8, "dp": 1024, "micro_batch": 1, "global_batch": 2048, "sharding": "none"},
    }
    plain, local, small = (
        predict(load_job({**base, "training": training}))
        for training in (
            {"recompute": "full"},
            {"recompute": "full", "local_steps": 10},
            {"recompute": "full", "compression": "int4"},
        )
    )
    assert local.level_bytes["world"] == pytest.approx(plain.level_bytes["world"] / 10)
    assert small.level_bytes["world"] == pytest.approx(plain.level_bytes["world"] / 4)
    assert max(local.step_seconds, small.step_seconds) <= plain.step_seconds


def test_a_pipeline_across_sites_sends_only_activations() -> None:
    placement = "parallel.placement=[tp, dp, pp]"
    base = {
        "model": "llama3-8b",
        "cluster": "two-regions",
        "parallel": {"tp": 8, "pp": 2, "dp": 512, "micro_batch": 1, "global_batch": 1024, "sharding": "none"},
        "training": {"recompute": "full", "schedule": "1f1b"},
    }
    prediction = predict(load_job(base, [placement]))
    # s b h 2 bytes of each of 512 replicas and 2 micro-batches, one way.
    assert prediction.level_bytes["world"] == pytest.approx(8192 * 4096 * 2 * 512 * 2)


def test_blanks_are_filled_with_what_fits() -> None:
    job = {**EXAMPLE, "parallel": {"tp": 8, "pp": 8, "global_batch": 64}, "training": {"precision": "fp16"}}
    prediction = predict(load_job(job))
    assert prediction.fits
    assert prediction.recompute == "selective"
    without = load_job({**job, "training": {"precision": "fp16", "recompute": "none"}})
    without = filled(without, replace(prediction, recompute="none"))
    assert not predict(without, must_fit=False).fits
    fixed = ask()
    assert prediction.step_seconds <= fixed.step_seconds * 1.02
    again = predict(filled(load_job(job), prediction))
    assert again.step_seconds == prediction.step_seconds


def test_recorded_steps_keep_their_timeline() -> None:
    timeline = predict(load_job(EXAMPLE), record=True).timeline
    assert timeline is not None
    assert timeline.spans
    assert ask().timeline is None


@pytest.mark.parametrize(
    ("overrides", "error", "sentence"),
    [
        (["parallel.tp=7"], PlanError, r"tp=7 does not divide model.heads=96; take tp=6"),
        (["parallel.pp=7"], PlanError, r"does not divide model.layers=96; take pp x vpp = 24"),
        (
            ["parallel.dp=100", "parallel.global_batch=6400"],
            PlanError,
            r"6400 devices and the cluster has 512; take parallel.dp=8",
        ),
        (
            ["parallel.global_batch=65", "parallel.micro_batch=2"],
            PlanError,
            r"global_batch=65 is not a multiple.*take global_batch=64",
        ),
        (["parallel.ep=2"], PlanError, r"ep=2 needs a model with experts; take ep=1"),
        (["training.schedule=1f1b"], PlanError, r"takes parallel.vpp=1, not 3; take vpp=1"),
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


def test_the_change_that_is_offered_fits() -> None:
    asked = {"tp": 8, "dp": 8, "global_batch": 64, "micro_batch": 1, "sharding": "none"}
    base = {
        "model": "llama3-70b",
        "cluster": "dgx-h100",
        "parallel": asked,
        "training": {"recompute": "none"},
    }
    with pytest.raises(DoesNotFitError) as caught:
        predict(load_job(base))
    offered = str(caught.value).rpartition("; take ")[2].rstrip(".").split()
    assert predict(load_job(base, offered)).fits


def test_a_cluster_that_is_too_small_says_how_large() -> None:
    with pytest.raises(DoesNotFitError, match=r"a cluster of at least \d+ such devices \(8 are here\)"):
        predict(
            load_job(
                {
                    "model": "llama3-405b",
                    "cluster": {
                        "device": "h100-80g",
                        "levels": [{"name": "node", "count": 8, "link": "nvlink4"}],
                    },
                    "parallel": {"tp": 8, "global_batch": 8},
                }
            )
        )


def test_experts_and_long_context_are_counted() -> None:
    sparse = {
        "model": "mixtral-8x7b",
        "cluster": "dgx-h100",
        "parallel": {"tp": 1, "ep": 8, "dp": 64, "micro_batch": 1, "global_batch": 256, "sharding": "zero1"},
        "training": {"recompute": "full"},
    }
    assert predict(load_job(sparse)).breakdown["expert_parallel"] > 0
    long = {
        "model": {"base": "llama3-8b", "seq": 131072},
        "cluster": "dgx-h100",
        "parallel": {"tp": 8, "cp": 16, "dp": 2, "micro_batch": 1, "global_batch": 8, "sharding": "zero1"},
    }
    exposed = []
    for seq in (131072, 32768, 16384):
        found = predict(load_job(long, ["training.recompute=full", f"model.seq={seq}"]))
        assert found.fits
        exposed.append(found.breakdown["context_parallel"] / found.step_seconds)
    # Attention of a long sequence hides the way round the ring, that of a short one does not.
    assert 0 == exposed[0] < exposed[1] < exposed[2]


def test_neo_s_models_run_on_neo_s_machine() -> None:
    for name in ("neo-a", "neo-f", "neo-i"):
        prediction = predict(load_job({"model": name, "cluster": "zionex", "global_batch": 65536}))
        assert sum(prediction.breakdown.values()) == pytest.approx(prediction.step_seconds)
        assert 2e5 < 65536 / prediction.step_seconds < 2e7
        assert prediction.fits


def test_tables_that_fit_nowhere_say_how_many_devices_would_do() -> None:
    job = load_job({"model": "neo-f", "cluster": "zionex", "parallel": {"dp": 16, "global_batch": 16384}})
    with pytest.raises(PlanError, match=r"take parallel\.dp=\d+"):
        predict(job)


def test_jobs_are_of_one_type() -> None:
    assert isinstance(load_job(EXAMPLE), Job)


def test_tokens_go_once_to_each_node_unless_rings_are_flat() -> None:
    def expert_seconds(collectives: str) -> float:
        job = load_job(
            {
                "model": "deepseek-v3",
                "cluster": {
                    "device": "h100-80g",
                    "levels": [
                        {"name": "node", "count": 8, "link": "nvlink4"},
                        {"name": "zone", "count": 16, "link": "roce-400x8"},
                    ],
                },
                "parallel": {"ep": 16, "dp": 128, "sharding": "zero3", "global_batch": 512, "micro_batch": 1},
                "network": {"collectives": collectives},
            }
        )
        return predict(job, must_fit=False).breakdown["expert_parallel"]

    # Of two nodes eight choices reach the other one 0.996 times; each by itself they would go 4 times.
    assert expert_seconds("auto") < 0.4 * expert_seconds("flat")


def test_bytes_between_copies_count_every_exchange() -> None:
    def carried(sharding: str, batch: int) -> float:
        parallel = {"dp": 16, "tp": 8, "sharding": sharding, "global_batch": batch, "micro_batch": 1}
        job = load_job({"model": "llama3-8b", "cluster": "dgx-h100", "parallel": parallel})
        return predict(job, must_fit=False).level_bytes["zone"]

    # Gradients are reduced with every micro-batch, or once.
    assert carried("zero1", 64) == carried("zero1", 16)
    assert carried("zero2", 64) > 2 * carried("zero2", 16)
    assert carried("zero3", 64) == pytest.approx(4 * carried("zero3", 16))
