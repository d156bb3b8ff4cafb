"""Functions of linear layers in plain torch, each operation as `csrc/dense/function_kernels.h` does it.

Sums and products of float32 are rounded alike everywhere, so these give the bits of every native build;
torch's own `exp` and `erf` do not. The exponential is Cephes's (2 units in the last place), the error
function that of Abramowitz and Stegun 7.1.26 (1.5e-7 of absolute error).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Function = Literal["none", "relu", "gelu", "silu", "sigmoid"]
FUNCTIONS: tuple[Function, ...] = ("none", "relu", "gelu", "silu", "sigmoid")
"""In the order of their numbers in csrc/dense/kernels.h."""

_LOWEST = -87.0
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _polynomial(x: Tensor, factors: tuple[float, ...]) -> Tensor:
    total = torch.full_like(x, factors[0])
    for factor in factors[1:]:
        total = total * x + factor
    return total


def exponential_twin(x: Tensor) -> Tensor:
    """e^x of numbers up to 0; below -87 that of -87."""
    x = torch.where(x < _LOWEST, torch.full_like(x, _LOWEST), x)
    power = torch.round(x * _LOG2_E)
    rest = (x - power * _LN2_HIGH) - power * _LN2_LOW
    value = (_polynomial(rest, _EXP) * (rest * rest) + rest) + 1.0
    bits = (torch.nan_to_num(power).to(torch.int32) + 127) << 23
    return value * bits.view(torch.float32)


def sigmoid_twin(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), by the exponential of -|x|."""
    small = exponential_twin(-x.abs())
    return torch.where(x < 0, small, torch.ones_like(x)) / (small + 1.0)


def _gelu(x: Tensor) -> Tensor:
    scaled = x.abs() * 0.70710678118654752
    share = 1.0 / (scaled * 0.3275911 + 1.0)
    tail = (_polynomial(share, _ERF) * share) * exponential_twin(-(scaled * scaled))
    error = 1.0 - tail
    return (x * 0.5) * (torch.where(x < 0, -error, error) + 1.0)


def apply_function_twin(function: Function, x: Tensor) -> Tensor:
    """`function` of every element; NaN stays NaN."""
    if function == "relu":
        return torch.where(x < 0, 0.0, x)
    if function == "gelu":
        return _gelu(x)
    if function == "silu":
        return x * sigmoid_twin(x)
    return sigmoid_twin(x) if function == "sigmoid" else x
