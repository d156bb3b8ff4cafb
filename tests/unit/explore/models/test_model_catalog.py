"""Models by name and from Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megalith.core.errors import ConfigError
from megalith.explore.job import TransformerModel
from megalith.explore.load import load_job
from megalith.explore.models import describe_model, from_hugging_face, model_catalog
from megalith.explore.workload import model_parameters

BILLIONS = {
    "gpt3-175b": 175,
    "gpt-530b": 530,
    "gpt-1t": 1008,
    "llama3-8b": 8.03,
    "llama3-70b": 70.6,
    "llama3-405b": 405.8,
    "mixtral-8x7b": 46.7,
    "deepseek-v3": 671,
    "nemotron-340b": 340,
    "qwen3-8b": 8.19,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235.1,
    "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8,
    "kimi-k2": 1026,
    "llama4-scout": 107.8,
    "llama4-maverick": 400.7,
}


@pytest.mark.parametrize(("name", "billions"), BILLIONS.items())
def test_parameters_are_those_of_the_source(name: str, billions: float) -> None:
    model = TransformerModel.model_validate(describe_model(name))
    assert model_parameters(model) / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("name", sorted(model_catalog()))
def test_every_model_makes_a_job(name: str) -> None:
    assert load_job({"model": name, "cluster": "dgx-h100", "global_batch": 64}).model.name == name


def test_a_hugging_face_file_is_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 8192,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "intermediate_size": 28672,
                "hidden_act": "silu",
                "vocab_size": 128256,
                "max_position_embeddings": 8192,
                "tie_word_embeddings": False,
            }
        )
    )
    job = load_job({"model": str(path), "cluster": "dgx-h100"})
    named = load_job({"model": "llama3-70b", "cluster": "dgx-h100"})
    assert isinstance(job.model, TransformerModel)
    assert isinstance(named.model, TransformerModel)
    assert model_parameters(job.model) == model_parameters(named.model)


def test_experts_and_low_rank_attention_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "deepseek_v3",
                "hidden_size": 7168,
                "num_hidden_layers": 61,
                "num_attention_heads": 128,
                "intermediate_size": 18432,
                "hidden_act": "silu",
                "vocab_size": 129280,
                "max_position_embeddings": 4096,
                "n_routed_experts": 256,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 2048,
                "n_shared_experts": 1,
                "first_k_dense_replace": 3,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
            }
        )
    )
    model = TransformerModel.model_validate(from_hugging_face(path))
    assert model_parameters(model) / 1e9 == pytest.approx(671, rel=0.005)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 8}')
    with pytest.raises(ConfigError, match=r"config\.json has no 'num_attention_heads'"):
        from_hugging_face(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        from_hugging_face(path)
    with pytest.raises(ConfigError, match="Unknown model 'llama3-70'; did you mean 'llama3-70b'"):
        describe_model("llama3-70")


MAVERICK = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "hidden_size": 5120,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
        "hidden_act": "silu",
        "vocab_size": 202048,
        "max_position_embeddings": 1048576,
        "tie_word_embeddings": False,
    },
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "hidden_act": "silu",
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN3 = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "sliding_window": None,
    "use_sliding_window": False,
    "hidden_act": "silu",
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("content", "name"),
    [(MAVERICK, "llama4-maverick"), (GPT_OSS, "gpt-oss-120b"), (QWEN3, "qwen3-235b-a22b")],
)
def test_a_config_of_today_is_the_model_of_the_catalog(
    content: dict[str, object], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    read = TransformerModel.model_validate(from_hugging_face(path))
    named = TransformerModel.model_validate(describe_model(name))
    assert read.model_copy(update={"name": name, "seq": named.seq}) == named


def test_multi_token_prediction_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN3, "num_nextn_predict_layers": 1}))
    assert from_hugging_face(path)["mtp_layers"] == 1


def test_a_pattern_that_does_not_repeat_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"] * 18}))
    with pytest.raises(ConfigError, match=r"full layers 1, 3, 5, 7, \.\.\. of 'layer_types' do not repeat"):
        from_hugging_face(path)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.experts=8", "experts=8 needs experts_per_token from 1 to 8, not 0"),
        ("model.experts_per_token=2", "experts_per_token=2 needs experts"),
        ("model.dense_layers=99", "dense_layers=99 is more than layers=80"),
        ("model.kv_heads=7", "kv_heads=7 does not divide heads=64"),
    ],
)
def test_a_model_that_cannot_be_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_job({"model": "llama3-70b", "cluster": "dgx-h100"}, [override])
