"""FLOPs of a training step: what the model needs, and what recompute adds."""

from __future__ import annotations

from megalith.explore.job import TransformerModel
from megalith.explore.workload.dimensions import layer_kind, layer_kinds
from megalith.explore.workload.operators import (
    LayerShape,
    Operators,
    head_operators,
    layer_operators,
    mtp_operators,
)


def model_flops(model: TransformerModel, sequences: float) -> float:
    """FLOPs of a step without recompute, by Narayanan's count: every product once forward and twice backward.

    For GPT blocks this is 72 B s l h^2 (1 + s/6h + V/12lh). Attention is counted in full, as the formula
    does.
    """
    shape = LayerShape(1, 1, 1, 1, False, False)
    total = 0.0
    for kind, layers in layer_kinds(model).items():
        total += layers * _product_flops(layer_operators(model, shape, kind))
    head = _product_flops(head_operators(model, shape))
    if model.mtp_layers:
        last = layer_operators(model, shape, layer_kind(model, model.layers - 1))
        module = _product_flops(mtp_operators(model, shape)) + _product_flops(last) + head
        total += model.mtp_layers * module
    return 3 * sequences * (total + head)


def recompute_flops(model: TransformerModel, sequences: float, recompute: str, flash: bool) -> float:
    """FLOPs done a second time: the layers' forward (full), or the attention's core (selective, unfused)."""
    if recompute == "none" or (recompute == "selective" and flash):
        return 0.0
    shape = LayerShape(1, 1, 1, 1, False, False)
    total = 0.0
    for kind, layers in layer_kinds(model).items():
        operators = layer_operators(model, shape, kind)
        total += layers * _product_flops(operators, core_only=recompute == "selective")
    return sequences * total


def _product_flops(operators: Operators, core_only: bool = False) -> float:
    return sum(
        2.0 * product.rows * product.columns * product.depth * product.batch
        for product in operators.products
        if product.core or not core_only
    )
