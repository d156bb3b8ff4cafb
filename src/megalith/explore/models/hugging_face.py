"""Transformers from a Hugging Face config.json: each family's keys to one description.

Where experts, windows and further predictions lie differs by family; keys are those of its modelling code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError
from megalith.core.files import read_json_object


class _HuggingFaceConfig:
    """The keys of a config.json, under whichever name a family has them."""

    def __init__(self, path: Path) -> None:
        fix = "pass a Hugging Face config.json"
        content = read_json_object(path, fix=fix, missing="check the path", error=ConfigError)
        self.content = content.get("text_config") or content
        self.path = path
        if not isinstance(self.content, dict):
            raise ConfigError(f"{path}: key 'text_config' is no object; {fix}.")
        self.family = str(self.content.get("model_type") or content.get("model_type") or "")

    def read(self, *keys: str, default: Any = None) -> Any:
        """The first of the keys that has a value."""
        return next((self.content[key] for key in keys if self.content.get(key) is not None), default)

    def need(self, *keys: str) -> Any:
        """The same; ConfigError where there is none."""
        value = self.read(*keys)
        if value is None:
            raise ConfigError(
                f"{self.path} has no '{keys[0]}'; add it, or describe the model in the job instead."
            )
        return value


def from_hugging_face(path: Path) -> dict[str, Any]:
    """A transformer's description out of `config.json`; sequences as long as the model can take."""
    config = _HuggingFaceConfig(path)
    read, need = config.read, config.need
    activation = str(read("hidden_act", "activation_function", "hidden_activation", default="gelu"))
    hidden, heads = need("hidden_size", "n_embd", "d_model"), need("num_attention_heads", "n_head", "n_heads")
    model: dict[str, Any] = {
        "kind": "transformer",
        "name": str(read("_name_or_path", "model_type", default=path.parent.name)),
        "hidden": hidden,
        "layers": need("num_hidden_layers", "n_layer", "n_layers"),
        "heads": heads,
        "kv_heads": read("num_key_value_heads", default=heads),
        # Llama 4 has two widths: of experts, and of layers without them.
        "ffn": read("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        # SiLU stands in gated blocks in every family that uses it; GELU in plain ones, but for Gemma's.
        "gated": activation in ("silu", "swish", "swiglu", "gelu_pytorch_tanh"),
        "vocab": need("vocab_size"),
        "seq": read("max_position_embeddings", "n_positions", "max_seq_len", default=2048),
        "tied_embeddings": bool(read("tie_word_embeddings", default=config.family == "gpt2")),
        "mtp_layers": read("num_nextn_predict_layers", default=0),
    }
    if read("head_dim") is not None:
        model["head_dim"] = config.content["head_dim"]
    if read("kv_lora_rank") is not None:
        model["low_rank_attention"] = {
            "q_rank": read("q_lora_rank", default=0),
            "kv_rank": config.content["kv_lora_rank"],
            "rope_head_dim": read("qk_rope_head_dim", default=64),
            "nope_head_dim": read("qk_nope_head_dim", default=128),
            "v_head_dim": read("v_head_dim", default=128),
        }
    return {**model, **_experts(config), **_windows(config)}


def _experts(config: _HuggingFaceConfig) -> dict[str, Any]:
    """Experts, and which layers have them."""
    read = config.read
    experts = read("n_routed_experts", "num_local_experts", "num_experts", default=0)
    if not experts:
        return {}
    llama4 = "intermediate_size_mlp" in config.content or config.family.startswith("llama4")
    part: dict[str, Any] = {
        "experts": experts,
        "experts_per_token": read(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", default=2
        ),
        # Every expert layer of Llama 4 has a shared expert, which its config does not count.
        "shared_experts": read("n_shared_experts", default=1 if llama4 else 0),
        "dense_layers": read("first_k_dense_replace", default=0),
        "expert_every": read("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", default=1),
    }
    if (width := read("shared_expert_intermediate_size")) is not None:
        part |= {"shared_experts": 1, "shared_ffn": width}
    if (width := read("moe_intermediate_size")) is not None:
        part["expert_ffn"] = width
    elif llama4:
        part["expert_ffn"] = config.need("intermediate_size")
    dense = read("mlp_only_layers", default=[])
    if dense and list(dense) == list(range(len(dense))):
        part["dense_layers"] = len(dense)
    elif dense:
        raise ConfigError(
            f"{config.path}: dense layers {_shown(dense)} of 'mlp_only_layers' are not the first ones; "
            "describe the model in the job instead, with dense_layers or expert_every."
        )
    return part


def _windows(config: _HuggingFaceConfig) -> dict[str, Any]:
    """Sliding windows, and how often a layer attends to everything."""
    read = config.read
    window = read("sliding_window", "attention_chunk_size")
    if not window or config.content.get("use_sliding_window") is False:
        return {}
    types = [str(kind) for kind in read("layer_types", default=[])]
    if types:
        full = [index + 1 for index, kind in enumerate(types) if kind == "full_attention"]
        if len(full) == len(types):
            return {}
        every = full[0] if full else 0
        if every and full != list(range(every, len(types) + 1, every)):
            raise ConfigError(
                f"{config.path}: full layers {_shown(full)} of 'layer_types' do not repeat; describe the "
                "model in the job instead, with window and full_attention_every."
            )
        return {"window": window, "full_attention_every": every}
    if "attention_chunk_size" in config.content:
        # Llama 4: every layer without rotary positions attends to everything.
        return {"window": window, "full_attention_every": read("no_rope_layer_interval", default=4)}
    return {"window": window, "full_attention_every": read("sliding_window_pattern", default=0)}


def _shown(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers[:4]) + (", ..." if len(numbers) > 4 else "")
