"""Dimensions of a transformer that a job may leave out, with their defaults."""

from __future__ import annotations

from megalith.explore.job import TransformerModel


def ffn_of(model: TransformerModel) -> int:
    """Width of the feed-forward layer."""
    return model.ffn or 4 * model.hidden


def kv_heads_of(model: TransformerModel) -> int:
    """Heads of keys and values; fewer than `heads` in grouped-query attention."""
    return model.kv_heads or model.heads


def head_dim_of(model: TransformerModel) -> int:
    """Width of one attention head."""
    return model.head_dim or model.hidden // model.heads


def is_expert_layer(model: TransformerModel, layer: int) -> bool:
    """Whether layer number `layer`, from 0, is a mixture of experts."""
    return model.experts > 0 and layer >= model.dense_layers
