"""The plain-torch truth of linear layers of reduced precision."""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.ops.dense.functions_twin import Function, apply_function_twin
from megalith.ops.dense.quantise import QuantisedWeight, quantise_activations


def int8_linear_twin(
    x: Tensor, weight: QuantisedWeight, bias: Tensor | None = None, function: Function = "none"
) -> Tensor:
    """(sum of products - zero * sum of weight codes) * (scale of x * scale of w) + bias, then `function`.

    The sums are exact integers; their difference is rounded to float32, then the product, then the sum.
    Where the product of both scales overflows, so does the result.
    """
    codes, scales, zeros = quantise_activations(x)
    # Sums of 32 bits are exact in float64, whose product is quicker than that of integers.
    weights = weight.codes.double()
    sums = codes.double() @ weights.T - zeros.double()[:, None] * weights.sum(1)
    return _finished(sums.float() * (scales[:, None] * weight.scales), bias, function)


def bf16_linear_twin(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, function: Function = "none"
) -> Tensor:
    """x and weight [out, in] rounded to bfloat16; sums in float32 in rising order of inputs, then bias.

    Every step is a fused multiply-add: the product is exact and only the sum is rounded. In float64 product
    and sum lose nothing that would change the rounding to float32.
    """
    inputs, weights = (one.to(torch.bfloat16).double() for one in (x, weight.detach()))
    sums = torch.zeros(len(inputs), len(weights))
    for column in range(weights.shape[1]):
        sums = (sums.double() + inputs[:, column : column + 1] * weights[:, column]).float()
    return _finished(sums, bias, function)


def _finished(sums: Tensor, bias: Tensor | None, function: Function) -> Tensor:
    return apply_function_twin(function, sums if bias is None else sums + bias.float())
