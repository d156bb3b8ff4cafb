"""How many parameters a transformer has, by layer and in all."""

from __future__ import annotations

from functools import lru_cache

from megalith.explore.job import TransformerModel
from megalith.explore.workload.dimensions import (
    ffn_of,
    head_dim_of,
    is_expert_layer,
    kv_heads_of,
    layer_kinds,
    shared_ffn_of,
)


@lru_cache(maxsize=4096)
def layer_weights(
    model: TransformerModel, expert: bool, tp: int = 1, ep: int = 1, etp: int = 0
) -> tuple[float, float]:
    """Parameters of one layer on one device: those that all data-parallel ranks share, and the routed
    experts', which `etp` ranks cut (0: as many as `tp`)."""
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
    shared = matrices * hidden * shared_ffn_of(model) / tp + model.experts * hidden
    return attention + shared + norms, model.experts / ep * matrices * hidden * width / (etp or tp)


def mtp_weights(model: TransformerModel, tp: int = 1, ep: int = 1, etp: int = 0) -> tuple[float, float]:
    """Parameters of one module of multi-token prediction; embedding and output head are the model's."""
    shared, routed = layer_weights(model, is_expert_layer(model, model.layers - 1), tp, ep, etp)
    return shared + 2 * model.hidden * model.hidden / tp + 2 * model.hidden, routed


def model_parameters(model: TransformerModel) -> float:
    """Parameters of the whole model."""
    total = sum(count * sum(layer_weights(model, kind.expert)) for kind, count in layer_kinds(model).items())
    total += model.mtp_layers * sum(mtp_weights(model)) if model.mtp_layers else 0.0
    return total + model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
