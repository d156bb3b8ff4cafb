"""Training software as data: which is taken, what it may hold, and what it changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from example_job import ask

from megalith.core.errors import ConfigError
from megalith.cost.calibration import calibration
from megalith.cost.operators import AttentionShape, flash_attention_seconds
from megalith.explore.cost.activations import head_bytes
from megalith.explore.job import TransformerModel
from megalith.explore.load import load_job, resolve_cluster
from megalith.explore.plan import make_plan
from megalith.explore.predict import predict
from megalith.explore.stacks import PRIORS, load_stack, release_of, stack_names
from megalith.explore.stacks.profile import MOST_CONSTANTS, parse_profile
from megalith.explore.workload import LayerShape

STACKS = [
    "deepseek-v3",
    "llm-foundry",
    "mcore-0.8",
    "megatron-2021",
    "megatron-bridge",
    "megatron-bridge-26.04",
    "megatron-deepspeed-2022",
    "nemo-25",
    "torchtitan",
]
JOB = {
    "model": "llama3-8b",
    "cluster": {
        "device": "h100-80g",
        "levels": [
            {"name": "node", "count": 8, "link": "nvlink4"},
            {"name": "zone", "count": 2, "link": "ib-ndr400x8"},
        ],
    },
    "parallel": {"tp": 1, "dp": 16, "micro_batch": 1, "global_batch": 64},
    "training": {},
}


def on(device: str = "h100-80g", link: str = "nvlink4", **training: object) -> str:
    levels = [{"name": "node", "count": 8, "link": link}, {"name": "zone", "count": 2, "link": "ib-ndr400x8"}]
    job = {**JOB, "cluster": {"device": device, "levels": levels}, "training": training}
    return predict(load_job(job), must_fit=False).stack


def seconds(**training: object) -> float:
    return predict(load_job({**JOB, "training": training}), must_fit=False).step_seconds


def test_the_stacks_of_the_design_ship() -> None:
    assert stack_names() == STACKS


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_has_at_most_six_constants_near_their_priors(name: str) -> None:
    profile = load_stack(name).profile
    constants = profile.constants.given()
    assert profile.name == name
    assert profile.measured
    assert 0 < len(constants) <= MOST_CONSTANTS
    for constant, value in constants.items():
        assert PRIORS[constant].low <= value <= PRIORS[constant].high


def test_a_seventh_constant_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 6 constants and this one 7"):
        parse_profile({"name": "mine", "constants": dict.fromkeys(list(PRIORS)[:7], 0.5)}, "mine.yaml")


def test_the_default_stack_is_by_device_and_the_prediction_says_which() -> None:
    assert on("h100-80g") == "nemo-25"
    assert on("gb200", "nvlink5") == "megatron-bridge"
    assert on("a100-80g", "nvlink3") == "megatron-2021"
    assert on("h100-80g", stack="torchtitan") == "torchtitan"


def test_an_unknown_stack_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="there is no stack 'nemo'; did you mean 'nemo-25'"):
        on(stack="nemo")


def test_a_profile_in_a_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text("name: slow\nconstants: {products: 0.7}\n")
    fast = tmp_path / "fast.yaml"
    fast.write_text("name: fast\nconstants: {products: 1.2}\n")
    assert on(stack=str(path)) == "slow"
    assert seconds(stack=str(path)) > seconds(stack=str(fast))


def test_fp8_is_faster_than_bf16_by_less_than_its_products() -> None:
    plain, narrow = seconds(precision="bf16"), seconds(precision="fp8")
    assert plain / 2 < narrow < 0.95 * plain


def test_nvfp4_needs_more_casts_than_mxfp8_and_still_gains_on_blackwell() -> None:
    levels = [{"name": "rack", "count": 16, "link": "nvlink5"}]
    found = {}
    for precision in ("bf16", "mxfp8", "nvfp4"):
        job = {**JOB, "cluster": {"device": "gb200", "levels": levels}, "training": {"precision": precision}}
        found[precision] = predict(load_job(job), must_fit=False).step_seconds
    assert found["mxfp8"] < found["bf16"]
    assert found["nvfp4"] < found["bf16"]


def test_recompute_by_module_takes_less_time_and_more_memory_than_all_of_it() -> None:
    def found(*overrides: str) -> tuple[float, float]:
        job = load_job(JOB, ["parallel.micro_batch=2", "training.recompute=selective", *overrides])
        prediction = predict(job, must_fit=False)
        return prediction.step_seconds, prediction.memory["activations"]

    norms = found("training.recompute_modules=[layernorm]")
    mlp = found("training.recompute_modules=[layernorm, mlp]")
    everything = found("training.recompute=full")
    assert norms[0] < mlp[0] < everything[0]
    assert norms[1] > mlp[1] > everything[1]


def test_offload_moves_state_off_the_device_for_time() -> None:
    plain, away = ask(), ask("training.offload=both")
    assert away.memory["optimizer"] == 0
    assert away.memory["activations"] < plain.memory["activations"]
    assert away.step_seconds > plain.step_seconds


def test_a_fused_loss_keeps_fewer_logits() -> None:
    shape = LayerShape(1, 1, 1, 4, False, True)
    model = load_job(JOB).model
    assert isinstance(model, TransformerModel)
    assert head_bytes(model, replace(shape, fused_loss=False)) > 2 * head_bytes(model, shape)


EXPERTS = {
    "model": "qwen3-30b-a3b",
    "cluster": {"device": "gb200", "levels": [{"name": "rack", "count": 16, "link": "nvlink5"}]},
    "parallel": {"tp": 2, "dp": 8, "ep": 8, "micro_batch": 4, "global_batch": 64},
}


def of_experts(stack: str, device: str = "gb200", **training: object) -> float:
    job = load_job({**EXPERTS, "training": {"stack": stack, **training}}, [f"cluster.device={device}"])
    return predict(job, must_fit=False).step_seconds


def test_a_release_has_a_profile_of_its_own_with_the_constants_of_the_others() -> None:
    assert release_of("megatron-bridge", "25.11") == "megatron-bridge-26.04"
    assert release_of("megatron-bridge", "26.04") == "megatron-bridge-26.04"
    assert release_of("megatron-bridge", "26.06") == "megatron-bridge"
    assert release_of("nemo-25", "25.04") == "nemo-25"
    older, newer = load_stack("megatron-bridge-26.04"), load_stack("megatron-bridge")
    assert older.profile.constants == newer.profile.constants
    assert older.fitted_as == newer.fitted_as == "megatron-bridge"


def test_steps_in_one_graph_save_the_launches_of_quantised_experts_on_blackwell_alone() -> None:
    older, newer = "megatron-bridge-26.04", "megatron-bridge"
    assert of_experts(newer, precision="mxfp8") < 0.9 * of_experts(older, precision="mxfp8")
    assert of_experts(newer, precision="bf16") == of_experts(older, precision="bf16")
    assert of_experts(newer, "h100-80g", precision="fp8") == of_experts(older, "h100-80g", precision="fp8")


def test_experts_are_cut_as_the_stack_s_recipes_cut_them_unless_the_job_says_it() -> None:
    def cut(stack: str, *overrides: str) -> int | None:
        job = load_job({**EXPERTS, "training": {"stack": stack}}, list(overrides))
        plan = make_plan(job, 4, "none")
        return plan.shape.expert_tp

    assert cut("megatron-bridge") == 1
    assert cut("nemo-25") == 2
    assert cut("megatron-bridge", "parallel.etp=2") == 2


@pytest.mark.parametrize(
    ("device", "share"), [("a100-80g", 0.83), ("h100-80g", 0.75), ("b200", 0.67), ("b300", 0.75)]
)
def test_narrow_heads_lose_more_where_exponentials_are_slow_beside_products(
    device: str, share: float
) -> None:
    level = {"name": "node", "count": 8, "link": "nvlink4"}
    job = load_job({**JOB, "cluster": {"device": device, "levels": [level]}})
    found = resolve_cluster(job.cluster).device
    constants = calibration(found)

    def rate(width: int) -> float:
        shape = AttentionShape(1024, 8192, 8192, width)
        return width / flash_attention_seconds(found, constants, "bf16", shape)

    assert rate(64) / rate(128) == pytest.approx(share, abs=0.01)
