"""Numbers of reduced precision in linear layers: codes of weights, codes of activations.

Weights are symmetric, with a scale for each output; activations are unsigned bytes with a scale and a zero
point for each sample, from its own smallest and largest value, so that no score depends on what else is in
its batch. All of it is float32, rounded half to even, and saturates. `csrc/dense` gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from megalith.core.errors import ConfigError

Products = Literal["u8s7", "u8s8"]
"""Codes of weights. `u8s7`: up to 63, so that two products of bytes fit 16 bits; `u8s8`: up to 127."""
LARGEST_CODE: dict[Products, int] = {"u8s7": 63, "u8s8": 127}
MAX_INPUTS = 1 << 16
"""Columns whose products of bytes add up within 32 bits."""
SMALLEST_SCALE = 2.0**-126
"""Of a sample: the smallest normal float32, whose inverse is one, too."""


@dataclass(frozen=True)
class QuantisedWeight:
    """A weight [out, in] as `codes * scales`: int8 codes, a float32 scale for each output."""

    codes: Tensor
    scales: Tensor
    products: Products

    def __post_init__(self) -> None:
        if self.codes.dtype != torch.int8 or self.codes.dim() != 2:
            raise ConfigError(f"codes are {self.codes.dtype} {list(self.codes.shape)}; pass int8 [out, in].")
        if self.scales.dtype != torch.float32 or tuple(self.scales.shape) != self.codes.shape[:1]:
            raise ConfigError(
                f"scales are {self.scales.dtype} {list(self.scales.shape)}; pass float32 [{len(self.codes)}]."
            )
        if self.codes.shape[1] > MAX_INPUTS:
            raise ConfigError(
                f"A weight of {self.codes.shape[1]:,} inputs overflows sums of 32 bits; use bfloat16 for it."
            )
        largest = LARGEST_CODE[self.products]
        if self.codes.numel() and int(self.codes.int().abs().max()) > largest:
            raise ConfigError(f"Codes of {self.products} are at most {largest}; quantise the weight again.")

    def dequantised(self) -> Tensor:
        """The weight that the codes stand for, in float32."""
        return self.codes.float() * self.scales[:, None]


def quantise_weight(weight: Tensor, products: Products = "u8s7") -> QuantisedWeight:
    """Codes and scales of a weight [out, in]: scale = max|w| / largest code, code = w / scale rounded.

    A row of zeros, or one so small that its scale rounds to zero, gets scale 0 and codes 0.
    """
    if weight.dim() != 2:
        raise ConfigError(f"A weight is [out, in], not {list(weight.shape)}.")
    values = weight.detach().float()
    if not torch.isfinite(values).all():
        raise ConfigError("A weight has values that are not finite; train again from before they appeared.")
    largest = LARGEST_CODE[products]
    peaks = values.abs().amax(1) if values.shape[1] else values.new_zeros(len(values))
    scales = peaks / largest
    codes = torch.where(scales[:, None] > 0, torch.round(values / scales[:, None]), 0.0)
    return QuantisedWeight(codes.clamp(-largest, largest).to(torch.int8).contiguous(), scales, products)


def quantise_activations(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(uint8 codes [samples, columns], float32 scales, int32 zero points) of float32 samples.

    low = min(0, smallest), high = max(0, largest), scale = high / 255 - low / 255, which cannot overflow;
    zero = -low * (1 / scale), code = x * (1 / scale) + zero, each rounded before it is added. A sample whose
    scale is below `SMALLEST_SCALE` reads as zeros: scale, zero point and codes are 0. One that holds NaN or
    an infinity has scale NaN and codes 0, so that every output of it is NaN.
    """
    values = x.float()
    finite = torch.isfinite(values).all(1)
    values = torch.where(finite[:, None], values, 0.0)
    none = values.new_zeros(len(values), 1)
    low, high = torch.cat([values, none], 1).aminmax(dim=1)
    scales = high / 255.0 - low / 255.0
    usable = scales >= SMALLEST_SCALE
    scales = torch.where(usable, scales, 0.0)
    inverse = torch.where(usable, 1.0 / scales, 0.0)
    zeros = torch.round(-low * inverse).clamp(0, 255)
    codes = (torch.round(values * inverse[:, None]) + zeros[:, None]).clamp(0, 255).to(torch.uint8)
    return codes, torch.where(finite, scales, torch.nan), zeros.to(torch.int32)
