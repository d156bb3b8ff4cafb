"""Models of torchtitan by shape: the flavour that is this very model, or how to add one.

A flavour is taken only if every size is the same, experts and vocabulary included: Mixtral 8x7B has the
sizes of Llama 3 8B but for its experts.
"""

from __future__ import annotations

from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.models import model_catalog
from megalith.explore.workload import ffn_of, kv_heads_of

# Catalog name -> model and flavour of torchtitan/models/*/__init__.py.
_FLAVORS = {
    "llama3-8b": ("llama3", "8B"),
    "llama3-70b": ("llama3", "70B"),
    "llama3-405b": ("llama3", "405B"),
    "llama4-scout": ("llama4", "17bx16e"),
    "llama4-maverick": ("llama4", "17bx128e"),
    "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"),
    "gpt-oss-120b": ("gpt_oss", "120b"),
}


def flavor_of(model: TransformerModel, missing: list[str]) -> tuple[str, str]:
    """torchtitan's model and flavour; what must be added there goes to `missing`."""
    known = _known_shapes().get(_shape(model))
    if known:
        return known
    name = model.name or "megalith"
    where = "torchtitan has no flavour of this shape; add"
    if model.low_rank_attention:
        missing.append(
            f"model {name}: {where} it to deepseekv3_args in torchtitan/models/deepseek_v3/__init__.py under "
            "this name."
        )
        return "deepseek_v3", name
    if model.experts:
        missing.append(
            f'model {name}: {where} to qwen3_args in torchtitan/models/qwen3/__init__.py: "{name}": '
            f"Qwen3ModelArgs(dim={model.hidden}, n_layers={model.layers}, n_heads={model.heads}, "
            f"n_kv_heads={kv_heads_of(model)}, vocab_size={model.vocab}, hidden_dim={ffn_of(model)}, "
            f"moe_enabled=True, moe_inter_dim={model.expert_ffn or ffn_of(model)}, "
            f"moe_args=MoEArgs(num_experts={model.experts}, top_k={model.experts_per_token}, "
            f"num_shared_experts={model.shared_experts}))."
        )
        if model.dense_layers or model.expert_every > 1:
            missing.append("dense layers among expert ones: every layer of torchtitan's Qwen3 has experts.")
        return "qwen3", name
    ffn = ffn_of(model)
    multiplier = "" if 8 * model.hidden // 3 <= ffn else ", ffn_dim_multiplier=0.5"
    missing.append(
        f'model {name}: {where} to llama3_args in torchtitan/models/llama3/__init__.py: "{name}": '
        f"TransformerModelArgs(dim={model.hidden}, n_layers={model.layers}, n_heads={model.heads}, "
        f"n_kv_heads={kv_heads_of(model)}, vocab_size={model.vocab}, multiple_of={ffn}{multiplier})."
    )
    if not model.gated:
        missing.append(
            "gated=false: torchtitan's blocks have gated feed-forward layers, half as large again."
        )
    if model.window is not None and model.window < model.seq:
        missing.append(f"window={model.window}: torchtitan's Llama 3 attends to everything.")
    return "llama3", name


def _shape(model: TransformerModel) -> TransformerModel:
    """The model without its name, and without what a run sets anew."""
    plain = {"name": "", "seq": 1, "mtp_layers": 0}
    if model.window is not None and model.window >= model.seq:
        plain |= {"window": None, "full_attention_every": 0}
    return model.model_copy(
        update={
            **plain,
            "kv_heads": kv_heads_of(model),
            "head_dim": model.head_dim or model.hidden // model.heads,
            "ffn": ffn_of(model),
        }
    )


@lru_cache(maxsize=1)
def _known_shapes() -> dict[TransformerModel, tuple[str, str]]:
    entries = model_catalog()
    return {
        _shape(TransformerModel.model_validate(entries[name])): flavor for name, flavor in _FLAVORS.items()
    }
