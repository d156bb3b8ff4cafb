"""Weights of a program as its file has them: those of layers in few bits are stored so.

NAME            float32; bfloat16 or int8 codes of a layer of that precision
NAME/scales     of codes, float32: one for each output

What is reduced when it is stored is what would be reduced when it is loaded: results are the same bits. In
folders of version 1, and in models that were never written, all weights are float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from megalith.core.errors import ServeError
from megalith.export.program import Linear, ModelProgram
from megalith.ops.dense.quantise import Products, QuantisedWeight, quantise_weight

PRODUCTS: Products = "u8s7"
"""Of layers in eight bits: exact on every machine, also by sums of 16 bits."""


def scales_of(name: str) -> str:
    """The tensor that holds the scales of a weight."""
    return f"{name}/scales"


def reduced_weights(
    program: ModelProgram, weights: Mapping[str, Tensor], products: Products
) -> dict[str, Tensor]:
    """Tensors to store. What several operations read that do not want it alike stays float32."""
    uses: dict[str, set[str]] = defaultdict(set)
    for operation in program.operations:
        for key in ("weight", "bias"):
            name = getattr(operation, key, None)
            if isinstance(name, str):
                is_layer = isinstance(operation, Linear) and key == "weight"
                uses[name].add(operation.precision if is_layer else "float32")  # type: ignore[union-attr]
    stored: dict[str, Tensor] = {}
    for name in program.weights:
        weight = weights[name].detach()
        if uses[name] == {"int8"}:
            held = quantise_weight(weight, products)
            stored[name], stored[scales_of(name)] = held.codes, held.scales
        else:
            stored[name] = weight.to(torch.bfloat16) if uses[name] == {"bfloat16"} else weight
    return stored


def layer_weight(
    layer: Linear, weights: Mapping[str, Tensor], products: Products
) -> Tensor | QuantisedWeight:
    """The weight [out, in] of a layer, rounded as its precision says, however it is stored."""
    weight = weights[layer.weight].detach()
    scales: Tensor | None = None
    if weight.dtype == torch.int8:
        scales = weights.get(scales_of(layer.weight))
        if scales is None:
            raise ServeError(f"Weight '{layer.weight}' has codes and no scales; export the model again.")
    if layer.precision == "int8":
        return (
            quantise_weight(weight, products) if scales is None else QuantisedWeight(weight, scales, products)
        )
    whole = weight.float() if scales is None else weight.float() * scales[:, None]
    # Rounded to bfloat16 and held as float32, which is exact.
    return whole.to(torch.bfloat16).float() if layer.precision == "bfloat16" else whole
