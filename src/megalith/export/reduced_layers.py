"""Linear layers in few bits, by the native core: the twins define every bit, and those of bfloat16 add up
column by column, which a gate over many samples cannot wait for."""

from __future__ import annotations

from torch import Tensor

from megalith.export.program import Function
from megalith.ops.dense.linear import bf16_linear, int8_linear
from megalith.ops.dense.quantise import Products, quantise_weight

PRODUCTS: Products = "u8s7"
"""Of layers in eight bits: exact on every machine, also by sums of 16 bits."""


def int8_layer(inputs: Tensor, weight: Tensor, bias: Tensor | None, function: Function) -> Tensor:
    """Eight bits for weights and for inputs, by sample."""
    return int8_linear(inputs.contiguous(), quantise_weight(weight, PRODUCTS), bias, function)


def bf16_layer(inputs: Tensor, weight: Tensor, bias: Tensor | None, function: Function) -> Tensor:
    """Weights and inputs in bfloat16, sums in float32."""
    return bf16_linear(inputs.contiguous(), weight, bias, function)
