"""The weights of a linear layer, as the precision of the layer has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megalith.export.program import Linear
from megalith.ops.dense.quantise import Products, quantise_weight


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Weights of one layer. Of eight bits there are `codes` and `scales`, else `numbers`."""

    shape: tuple[int, int]
    """[out, in]."""
    numbers: np.ndarray
    """Float32 [out, in]; what the codes stand for, where there are codes."""
    bias: np.ndarray | None
    codes: np.ndarray | None = None
    """Int8 [out, in]."""
    scales: np.ndarray | None = None
    """Float32 [out]."""

    @property
    def code_sums(self) -> np.ndarray:
        """Int32 [out]: of the codes of each output, which a zero point is multiplied with."""
        assert self.codes is not None
        sums: np.ndarray = self.codes.sum(1, dtype=np.int32)
        return sums


def linear_weights(layer: Linear, weights: Mapping[str, Tensor], products: Products) -> LinearWeights:
    """The weights of a layer, rounded as its precision says."""
    weight = weights[layer.weight].detach()
    bias = None if layer.bias is None else weights[layer.bias].detach().float().contiguous().numpy()
    shape = (weight.shape[0], weight.shape[1])
    if layer.precision == "int8":
        found = quantise_weight(weight, products)
        numbers = found.dequantised().numpy()
        return LinearWeights(shape, numbers, bias, found.codes.numpy(), found.scales.numpy())
    if layer.precision == "bfloat16":
        weight = weight.to(torch.bfloat16)
    return LinearWeights(shape, weight.float().contiguous().numpy(), bias)
