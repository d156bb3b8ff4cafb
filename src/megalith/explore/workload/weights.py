"""How many parameters a transformer has, by layer and in all."""

from __future__ import annotations

from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.workload.dimensions import ffn_of, head_dim_of, kv_heads_of


@lru_cache(maxsize=4096)
def layer_weights(model: TransformerModel, expert: bool, tp: int = 1, ep: int = 1) -> tuple[float, float]:
    """Parameters of one layer on one device: those that all data-parallel ranks share, and the routed
    experts'."""
    hidden = model.hidden
    if model.low_rank_attention:
        low = model.low_rank_attention
        query = low.nope_head_dim + low.rope_head_dim
        # The projections down to the ranks are small and kept whole on every tensor-parallel rank.
        attention = float(hidden * (low.kv_rank + low.rope_head_dim) + hidden * low.q_rank)
        per_head = low.kv_rank * (low.nope_head_dim + low.v_head_dim) + low.v_head_dim * hidden
        per_head += query * (low.q_rank or hidden)
        attention += model.heads * per_head / tp
    else:
        head_dim = head_dim_of(model)
        attention = (2 * model.heads + 2 * max(kv_heads_of(model), tp)) * head_dim * hidden / tp
    matrices = 3 if model.gated else 2
    norms = 4 * hidden
    if not expert:
        return attention + matrices * hidden * ffn_of(model) / tp + norms, 0.0
    width = model.expert_ffn or ffn_of(model)
    shared = model.shared_experts * matrices * hidden * width / tp + model.experts * hidden
    return attention + shared + norms, model.experts / ep * matrices * hidden * width / tp


def model_parameters(model: TransformerModel) -> float:
    """Parameters of the whole model."""
    expert = model.layers - model.dense_layers if model.experts else 0
    total = (model.layers - expert) * sum(layer_weights(model, False))
    total += expert * sum(layer_weights(model, True))
    return total + model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
