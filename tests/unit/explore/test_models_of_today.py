"""Layer patterns, multi-token prediction, folded experts, context exchanges: what each does to a step."""

from __future__ import annotations

from typing import Any

import pytest

from megalith.core.errors import PlanError
from megalith.explore import Prediction, load_job, predict
from megalith.explore.job import TransformerModel
from megalith.explore.models import describe_model
from megalith.explore.plan import layers_of, make_plan
from megalith.explore.workload import model_flops

QWEN = {
    "model": "qwen3-235b-a22b",
    "cluster": {
        "device": "h100-80g",
        "levels": [
            {"name": "node", "count": 8, "link": "nvlink4"},
            {"name": "zone", "count": 32, "link": "ib-ndr400x8"},
        ],
    },
    # NVIDIA's layout: experts over the tensor-parallel group.
    "parallel": {"tp": 2, "pp": 8, "vpp": 1, "ep": 32, "dp": 16, "micro_batch": 1, "global_batch": 2048,
                 "layers_per_stage": [11, 12, 12, 12, 12, 12, 12, 11]},
    "training": {"schedule": "1f1b", "recompute": "full"},
}  # fmt: skip


def ask(base: dict[str, Any], *overrides: str) -> Prediction:
    return predict(load_job(base, overrides), must_fit=False)


def model(name: str, **changes: object) -> TransformerModel:
    return TransformerModel.model_validate({**describe_model(name), **changes})


def test_nvidias_layouts_are_predicted() -> None:
    assert ask(QWEN).step_seconds > 0
    deepseek = {
        **QWEN,
        "model": "deepseek-v3",
        "parallel": {"tp": 2, "pp": 16, "ep": 64, "dp": 32, "micro_batch": 1, "global_batch": 8192,
                     "layers_per_stage": [3, *[4] * 14, 2]},
    }  # fmt: skip
    assert ask(deepseek, "cluster.levels.1.count=128").step_seconds > 0


def test_experts_that_are_not_cut_gather_no_tokens() -> None:
    cut = ask(QWEN, "parallel.ep=8", "parallel.etp=2")
    whole = ask(QWEN, "parallel.ep=8", "parallel.etp=1")
    assert whole.breakdown["tensor_parallel"] < cut.breakdown["tensor_parallel"]
    # The default is the tensor-parallel group where it fits, as in Megatron.
    assert ask(QWEN, "parallel.ep=8").step_seconds == cut.step_seconds


def test_experts_folded_hold_the_same_state_in_all() -> None:
    # 2 x 16 ranks a stage: 32 groups of whole experts, or 16 of experts cut in two.
    folded = ask(QWEN, "parallel.ep=32")
    cut = ask(QWEN, "parallel.ep=16", "parallel.etp=2")
    assert folded.memory["weights"] == pytest.approx(cut.memory["weights"])


def test_dense_and_expert_layers_alternate() -> None:
    maverick, every = model("llama4-maverick"), model("llama4-maverick", expert_every=1)
    assert model_flops(maverick, 1) > model_flops(every, 1) * 0.9
    plan = make_plan(
        load_job(
            {**QWEN, "model": "llama4-maverick"},
            ["parallel.layers_per_stage=null", "parallel.tp=2", "parallel.ep=16"],
        ),
        1,
        "full",
    )
    assert plan.layers_per_stage == (6,) * 8


def test_a_window_takes_work_off_long_sequences() -> None:
    full = model("gpt-oss-120b", seq=65536, window=None)
    assert model_flops(model("gpt-oss-120b", seq=65536), 1) < 0.75 * model_flops(full, 1)
    # A window as wide as the sequence is no window.
    assert model_flops(model("gpt-oss-120b", window=4096), 1) == model_flops(
        model("gpt-oss-120b", window=None), 1
    )


def test_multi_token_prediction_is_a_layer_a_projection_and_a_head_more() -> None:
    deepseek = {**QWEN, "model": "deepseek-v3"}
    last = "parallel.layers_per_stage=[8,8,8,8,8,8,8,5]"
    without = ask(deepseek, last, "parallel.ep=32")
    module = ask(deepseek, last, "parallel.ep=32", "model.mtp_layers=1")
    assert module.step_seconds > without.step_seconds
    more = model_flops(model("deepseek-v3", mtp_layers=1), 1) / model_flops(model("deepseek-v3"), 1)
    assert 1 + 1 / 61 < more < 1 + 3 / 61


def test_the_embedding_and_the_head_count_as_layers() -> None:
    job = load_job(
        {"model": "llama3-405b", "cluster": "dgx-h100", "parallel": {"tp": 8, "pp": 16, "vpp": 8, "dp": 8,
         "global_batch": 512, "embedding_as_layer": True, "head_as_layer": True},
         "training": {"schedule": "interleaved"}}
    )  # fmt: skip
    assert isinstance(job.model, TransformerModel)
    assert job.parallel is not None
    assert layers_of(job.model, job.parallel) == (0, *[1] * 126, 0)
    assert predict(job, must_fit=False).step_seconds > 0
    without = load_job(job.model_dump(exclude_unset=True), ["parallel.head_as_layer=false"])
    with pytest.raises(PlanError, match=r"does not divide model.layers=126 \+ 1"):
        predict(without)


LONG = {
    "model": {"base": "llama3-8b", "seq": 131072},
    "cluster": {"device": "h100-80g", "levels": [{"name": "node", "count": 8, "link": "nvlink4"}]},
    "parallel": {"cp": 8, "micro_batch": 1, "global_batch": 1},
    "training": {"recompute": "full"},
}


def test_context_parallelism_by_ring_hides_what_a_gather_shows() -> None:
    exposed = {
        way: ask(LONG, f"parallel.context_exchange={way}").breakdown["context_parallel"]
        for way in ("ring", "all-gather", "all-to-all")
    }
    assert exposed["ring"] == 0 < exposed["all-to-all"] < exposed["all-gather"]


def test_an_exchange_of_heads_needs_heads() -> None:
    with pytest.raises(PlanError, match=r"take parallel\.cp=4 or parallel\.context_exchange=ring"):
        ask(LONG, "parallel.context_exchange=all-to-all", "parallel.tp=8", "parallel.cp=8",
            "cluster.levels.0.count=64")  # fmt: skip
