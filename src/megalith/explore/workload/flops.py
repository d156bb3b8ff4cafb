"""FLOPs of a training step: what the model needs, and what recompute adds."""

from __future__ import annotations

from megalith.explore.job import TransformerModel
from megalith.explore.workload.dimensions import is_expert_layer
from megalith.explore.workload.operators import LayerShape, Operators, head_operators, layer_operators


def model_flops(model: TransformerModel, sequences: float) -> float:
    """FLOPs of a step without recompute, by Narayanan's count: every product once forward and twice backward.

    For GPT blocks this is 72 B s l h^2 (1 + s/6h + V/12lh). Attention is counted in full, as the formula
    does.
    """
    shape = LayerShape(1, 1, 1, 1, False, False)
    total = 0.0
    for expert in (False, True):
        layers = sum(1 for layer in range(model.layers) if is_expert_layer(model, layer) == expert)
        if layers:
            total += layers * _product_flops(layer_operators(model, shape, expert))
    return 3 * sequences * (total + _product_flops(head_operators(model, shape)))


def recompute_flops(model: TransformerModel, sequences: float, recompute: str, flash: bool) -> float:
    """FLOPs done a second time: the layers' forward (full), or the attention's core (selective, unfused)."""
    if recompute == "none" or (recompute == "selective" and flash):
        return 0.0
    shape = LayerShape(1, 1, 1, 1, False, False)
    total = 0.0
    for expert in (False, True):
        layers = sum(1 for layer in range(model.layers) if is_expert_layer(model, layer) == expert)
        if layers:
            operators = layer_operators(model, shape, expert)
            total += layers * _product_flops(operators, core_only=recompute == "selective")
    return sequences * total


def _product_flops(operators: Operators, core_only: bool = False) -> float:
    return sum(
        2.0 * product.rows * product.columns * product.depth * product.batch
        for product in operators.products
        if product.core or not core_only
    )
