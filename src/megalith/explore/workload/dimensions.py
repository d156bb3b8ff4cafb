"""Dimensions of a transformer that a job may leave out, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


def shared_ffn_of(model: TransformerModel) -> int:
    """Width of all shared experts together."""
    return model.shared_experts * (model.shared_ffn or model.expert_ffn or ffn_of(model))


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What distinguishes a layer from others of the model."""

    expert: bool = False
    windowed: bool = False


def is_expert_layer(model: TransformerModel, layer: int) -> bool:
    """Whether layer number `layer`, from 0, is a mixture of experts."""
    after = layer - model.dense_layers
    return model.experts > 0 and after >= 0 and (after + 1) % model.expert_every == 0


def layer_kind(model: TransformerModel, layer: int) -> LayerKind:
    """The kind of layer number `layer`, from 0."""
    every = model.full_attention_every
    windowed = model.window is not None and model.window < model.seq
    return LayerKind(is_expert_layer(model, layer), windowed and not (every and (layer + 1) % every == 0))


@lru_cache(maxsize=4096)
def layer_kinds(model: TransformerModel, start: int = 0, count: int | None = None) -> dict[LayerKind, int]:
    """How many layers of each kind there are among `count` from number `start` on."""
    kinds: dict[LayerKind, int] = {}
    for layer in range(start, start + (model.layers if count is None else count)):
        kind = layer_kind(model, layer)
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def keys_of(model: TransformerModel, windowed: bool) -> int:
    """Keys a query sees, as if attention were causal over so many: a window of w counts 2w - w^2/s, as its
    triangle at the start is small."""
    if not windowed or model.window is None or model.window >= model.seq:
        return model.seq
    return 2 * model.window - model.window * model.window // model.seq
