"""Models by name (YAML files beside this one), and transformers from a Hugging Face config.json."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from megalith.core.config import load_yaml
from megalith.core.errors import ConfigError, nearest
from megalith.core.files import read_json_object

_FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def model_catalog() -> dict[str, dict[str, Any]]:
    """Name -> description, as `model:` in a job takes it."""
    entries: dict[str, dict[str, Any]] = {}
    for path in sorted(_FOLDER.glob("*.yaml")):
        entries |= load_yaml(path)
    return {name: {"kind": "transformer", "name": name, **entry} for name, entry in entries.items()}


def describe_model(name: str) -> dict[str, Any]:
    """The description behind a catalog name or the path of a config.json."""
    if name.endswith(".json"):
        return from_hugging_face(Path(name))
    entries = model_catalog()
    if name not in entries:
        raise ConfigError(
            f"Unknown model '{name}'; {nearest(name, sorted(entries))} A path to a config.json works too."
        )
    return dict(entries[name])


def from_hugging_face(path: Path) -> dict[str, Any]:
    """A transformer's description out of `config.json`; sequences as long as the model can take."""
    fix = "pass a Hugging Face config.json"
    content = read_json_object(path, fix=fix, missing="check the path", error=ConfigError)
    content = content.get("text_config") or content
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: key 'text_config' is no object; {fix}.")

    def read(*keys: str, default: Any = None) -> Any:
        return next((content[key] for key in keys if content.get(key) is not None), default)

    def need(*keys: str) -> Any:
        value = read(*keys)
        if value is None:
            raise ConfigError(f"{path} has no '{keys[0]}'; add it, or describe the model in the job instead.")
        return value

    activation = str(read("hidden_act", "activation_function", "hidden_activation", default="gelu"))
    hidden, heads = need("hidden_size", "n_embd", "d_model"), need("num_attention_heads", "n_head", "n_heads")
    experts = read("n_routed_experts", "num_local_experts", "num_experts", default=0)
    model: dict[str, Any] = {
        "kind": "transformer",
        "name": str(read("_name_or_path", "model_type", default=path.parent.name)),
        "hidden": hidden,
        "layers": need("num_hidden_layers", "n_layer", "n_layers"),
        "heads": heads,
        "kv_heads": read("num_key_value_heads", default=heads),
        "ffn": read("intermediate_size", "n_inner", "ffn_dim", default=4 * hidden),
        # SiLU stands in gated blocks in every family that uses it; GELU in plain ones, but for Gemma's.
        "gated": activation in ("silu", "swish", "swiglu", "gelu_pytorch_tanh"),
        "vocab": need("vocab_size"),
        "seq": read("max_position_embeddings", "n_positions", "max_seq_len", default=2048),
        "tied_embeddings": bool(read("tie_word_embeddings", default=content.get("model_type") == "gpt2")),
        "experts": experts,
        "experts_per_token": read(
            "num_experts_per_tok", "num_experts_per_token", default=2 if experts else 0
        ),
        "shared_experts": read("n_shared_experts", default=0) if experts else 0,
        "dense_layers": read("first_k_dense_replace", default=0) if experts else 0,
    }
    if read("head_dim") is not None:
        model["head_dim"] = content["head_dim"]
    if experts and read("moe_intermediate_size") is not None:
        model["expert_ffn"] = content["moe_intermediate_size"]
    if read("kv_lora_rank") is not None:
        model["low_rank_attention"] = {
            "q_rank": read("q_lora_rank", default=0),
            "kv_rank": content["kv_lora_rank"],
            "rope_head_dim": read("qk_rope_head_dim", default=64),
            "nope_head_dim": read("qk_nope_head_dim", default=128),
            "v_head_dim": read("v_head_dim", default=128),
        }
    return model
