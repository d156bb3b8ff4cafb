"""What communication costs: links, collectives, sharding and the bytes that cross each level."""

from __future__ import annotations

from typing import Any

import pytest
from example_job import EXAMPLE, ask

from megalith.explore import load_job, predict


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
    assert exposed[0] == 0
    assert min(exposed[1:]) > 0.1


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
