"""Bytes of activations that a layer keeps for its backward pass, after Korthikanti et al. (2022).

For GPT blocks this is s b h (10 + 24/t + 5 a s / (h t)), all of it over t with sequence parallelism, without
the last term when the attention's core is computed again or fused, and 2 s b h with full recompute.
"""

from __future__ import annotations

from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.workload import LayerShape, ffn_of, head_dim_of, kv_heads_of, shared_ffn_of


@lru_cache(maxsize=8192)
def layer_bytes(model: TransformerModel, shape: LayerShape, recompute: str, expert: bool) -> float:
    """Kept from one layer's forward to its backward, for one micro-batch."""
    tokens = model.seq * shape.micro_batch / shape.cp
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    if recompute == "full":
        return 2 * whole
    return _everything(model, shape, expert, core=recompute == "none" and not shape.flash)


@lru_cache(maxsize=8192)
def working_bytes(model: TransformerModel, shape: LayerShape, recompute: str, expert: bool) -> float:
    """What the backward pass of one layer holds beyond what was kept: everything it has computed again."""
    core = not shape.flash
    if recompute == "full":
        return _everything(model, shape, expert, core=core)
    if recompute == "selective" and core:
        return _core(model, shape)
    return 0.0


def head_bytes(model: TransformerModel, shape: LayerShape) -> float:
    """Logits in half and single precision and their gradient, at the end of the last stage."""
    return 10 * model.seq * shape.micro_batch / shape.cp * model.vocab / shape.tp


def _everything(model: TransformerModel, shape: LayerShape, expert: bool, core: bool) -> float:
    tokens = model.seq * shape.micro_batch / shape.cp
    whole = tokens * model.hidden / (shape.tp if shape.sequence_parallel else 1)
    if model.low_rank_attention:
        low = model.low_rank_attention
        per_head = 2 * (low.nope_head_dim + low.rope_head_dim) + 2 * low.v_head_dim
        attention = 2 * tokens * (model.heads * per_head / shape.tp + low.kv_rank + low.q_rank)
    else:
        per_head = head_dim_of(model)
        attention = (
            2 * tokens * per_head * (2 * model.heads + 2 * max(kv_heads_of(model), shape.tp)) / shape.tp
        )
    inner = 3 if model.gated else 2
    if expert:
        width = model.expert_ffn or ffn_of(model)
        # Routed tokens of a device times its part of an expert is the same however experts are cut.
        chosen = model.experts_per_token * width + shared_ffn_of(model)
        mlp = 2 * tokens * (inner * chosen / shape.tp)
        mlp += (
            2 * tokens * model.hidden * model.experts_per_token / (shape.tp if shape.sequence_parallel else 1)
        )
    else:
        mlp = 2 * tokens * inner * ffn_of(model) / shape.tp
    return 10 * whole + attention + mlp + (_core(model, shape) if core else 0.0)


def _core(model: TransformerModel, shape: LayerShape) -> float:
    return 5 * model.heads / shape.tp * (model.seq / shape.cp) * model.seq * shape.micro_batch
