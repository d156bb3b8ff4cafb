"""The weights of a linear layer, as the precision of the layer has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from megalith.export.program import Linear
from megalith.export.stored_weights import layer_weight
from megalith.ops.dense.quantise import Products, QuantisedWeight


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
    weight = layer_weight(layer, weights, products)
    bias = None if layer.bias is None else weights[layer.bias].detach().float().contiguous().numpy()
    rows, columns = weights[layer.weight].shape
    if isinstance(weight, QuantisedWeight):
        numbers = weight.dequantised().numpy()
        return LinearWeights((rows, columns), numbers, bias, weight.codes.numpy(), weight.scales.numpy())
    return LinearWeights((rows, columns), weight.contiguous().numpy(), bias)
