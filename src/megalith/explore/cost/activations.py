"""Bytes of activations that a layer keeps for its backward pass, after Korthikanti et al. (2022).

For GPT blocks with dropout this is s b h (10 + 24/t + 5 a s / (h t)), all of it over t with sequence
parallelism, without the last term when the attention's core is computed again or fused, and 2 s b h with full
recompute. Fused attention has no dropout masks (8 in place of 10), FP8 keeps inputs of products in one byte.
"""

from __future__ import annotations

from functools import lru_cache

from megalith.cost.operators import BYTES_PER_ELEMENT, QUANTISED
from megalith.explore.job import TransformerModel
from megalith.explore.workload import LayerShape, ffn_of, head_dim_of, kv_heads_of, shared_ffn_of

Parts = dict[str, float]
"""Bytes by the module that keeps them, in the names of `training.recompute_modules`, and `inputs`."""


@lru_cache(maxsize=8192)
def layer_bytes(
    model: TransformerModel, shape: LayerShape, recompute: str, expert: bool, precision: str = "bf16"
) -> float:
    """Kept from one layer's forward to its backward, for one micro-batch."""
    if recompute == "full":
        return 2 * _hidden_elements(model, shape)
    parts = _parts(model, shape, expert, precision)
    if recompute == "none":
        return sum(parts.values())
    return sum(parts.values()) - _freed(model, shape, parts)


@lru_cache(maxsize=8192)
def working_bytes(
    model: TransformerModel, shape: LayerShape, recompute: str, expert: bool, precision: str = "bf16"
) -> float:
    """What the backward pass of one layer holds beyond what was kept: what it has computed again, and the
    gradients inside the layer."""
    parts = _parts(model, shape, expert, precision)
    gradients = 2 * _hidden_elements(model, shape) + 2 * _widest(model, shape, expert)
    if recompute == "full":
        return sum(parts.values()) + gradients
    return gradients + (_freed(model, shape, parts) if recompute == "selective" else 0.0)


def head_bytes(model: TransformerModel, shape: LayerShape) -> float:
    """Logits and their gradient at the end of the last stage: in half and single precision, or once in half
    where the loss is fused and works in place."""
    logits = model.seq * shape.micro_batch / shape.cp * model.vocab / shape.tp
    return (4 if shape.fused_loss else 10) * logits


def _tokens(model: TransformerModel, shape: LayerShape) -> float:
    return model.seq * shape.micro_batch / shape.cp


def _hidden_elements(model: TransformerModel, shape: LayerShape) -> float:
    return _tokens(model, shape) * model.hidden / (shape.tp if shape.sequence_parallel else 1)


def _widest(model: TransformerModel, shape: LayerShape, expert: bool) -> float:
    """Elements of the widest tensor in a layer: the feed-forward's first product."""
    width = (model.expert_ffn or ffn_of(model)) * model.experts_per_token if expert else ffn_of(model)
    return _tokens(model, shape) * width * (2 if model.gated else 1) / shape.tp


def _parts(model: TransformerModel, shape: LayerShape, expert: bool, precision: str) -> Parts:
    tokens, whole = _tokens(model, shape), _hidden_elements(model, shape)
    # Inputs of products are kept as the products read them.
    narrow = BYTES_PER_ELEMENT[precision] if precision in QUANTISED else 2.0
    parts: Parts = {
        "inputs": (4 + (0 if shape.flash else 2)) * whole,
        "layernorm": 2 * narrow * whole,
        "core_attn": 0.0 if shape.flash else _core(model, shape),
        "mla_up_proj": 0.0,
    }
    if model.low_rank_attention:
        low = model.low_rank_attention
        queries = 2 * (low.nope_head_dim + low.rope_head_dim) + low.v_head_dim
        parts["mla_up_proj"] = 2 * tokens * model.heads * queries / shape.tp
        parts["attention"] = tokens * (
            2 * (low.kv_rank + low.q_rank) + narrow * model.heads * low.v_head_dim / shape.tp
        )
    else:
        kept = (2 + narrow) * model.heads + 4 * max(kv_heads_of(model), shape.tp)
        parts["attention"] = tokens * head_dim_of(model) * kept / shape.tp
    first = 2.0 * (2 if model.gated else 1)
    if not expert:
        parts["mlp"] = tokens * (first + narrow) * ffn_of(model) / shape.tp
        return parts
    routed = tokens * (model.expert_ffn or ffn_of(model)) / shape.tp
    parts["moe"] = routed * first * model.experts_per_token
    parts["moe"] += narrow * whole * model.experts_per_token
    parts["moe_act"] = routed * narrow * model.experts_per_token
    parts["shared_experts"] = tokens * (first + narrow) * shared_ffn_of(model) / shape.tp
    return parts


def _freed(model: TransformerModel, shape: LayerShape, parts: Parts) -> float:
    """What selective recompute does not keep."""
    if shape.modules:
        return sum(parts.get(name, 0.0) for name in shape.modules) + (
            parts.get("moe_act", 0.0) if "moe" in shape.modules and "moe_act" not in shape.modules else 0.0
        )
    if shape.selective == "core":
        return parts["core_attn"]
    # Every second product and all that is not a product: half of what products wrote, all that norms and
    # activations did.
    kept = parts["inputs"] / 2 + (parts["attention"] + parts["mla_up_proj"]) * 0.75
    kept += 0.35 * (parts.get("mlp", 0.0) + parts.get("moe", 0.0) + parts.get("shared_experts", 0.0))
    return sum(parts.values()) - kept


def _core(model: TransformerModel, shape: LayerShape) -> float:
    return 5 * model.heads / shape.tp * (model.seq / shape.cp) * model.seq * shape.micro_batch
