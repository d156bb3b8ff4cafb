"""Programs as OpenVINO models, built with its own operations: no file and no other format between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from megalith.export.backends.graphs.linear import LinearWeights
from megalith.export.backends.graphs.lowering import GraphBuilder, Reduction

_REDUCE = {
    "sum": ops.reduce_sum,
    "mean": ops.reduce_mean,
    "min": ops.reduce_min,
    "max": ops.reduce_max,
}


class OpenVinoBuilder(GraphBuilder[Any]):
    """Builds an OpenVINO graph; a value is a node of it."""

    def __init__(self) -> None:
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def model(self) -> Any:
        """The model."""
        return openvino.Model(self._outputs, self._inputs, "program")

    def input(self, name: str, columns: int) -> Any:
        """A float32 parameter of any number of samples."""
        node = ops.parameter([-1, columns], openvino.Type.f32, name=name)
        node.output(0).set_names({name})
        self._inputs.append(node)
        return node

    def output(self, name: str, value: Any) -> None:
        """The value without its axis of one column."""
        flat = ops.squeeze(value, self._integers([1]))
        flat.output(0).set_names({name})
        self._outputs.append(ops.result(flat))

    def constant(self, numbers: np.ndarray) -> Any:
        """A constant."""
        return ops.constant(np.ascontiguousarray(numbers))

    def linear(self, x: Any, weight: np.ndarray, bias: np.ndarray | None) -> Any:
        """A product with turned weights."""
        y = ops.matmul(x, self.constant(weight), False, True)
        return y if bias is None else ops.add(y, self.constant(bias[None]))

    def integer_linear(self, x: Any, weights: LinearWeights) -> Any:
        """Codes that are scaled where they are read: a processor with products of bytes takes them as they
        are and rounds activations by ranges of its own."""
        assert weights.codes is not None
        assert weights.scales is not None
        codes = ops.convert(self.constant(weights.codes), np.float32)
        weight = ops.multiply(codes, self.constant(weights.scales[:, None]))
        y = ops.matmul(x, weight, False, True)
        return y if weights.bias is None else ops.add(y, self.constant(weights.bias[None]))

    def rounded_to_bfloat16(self, x: Any) -> Any:
        """By Veltkamp's splitting, of which 8 bits stay: a conversion there and back is optimised away."""
        far = ops.multiply(x, self.constant(np.array([65537.0], dtype=np.float32)))
        return ops.subtract(far, ops.subtract(far, x))

    def function(self, name: str, x: Any) -> Any:
        """The operation of that name."""
        if name == "relu":
            return ops.relu(x)
        if name == "silu":
            return ops.swish(x)
        return ops.gelu(x, "erf") if name == "gelu" else ops.sigmoid(x)

    def add(self, x: Any, y: Any) -> Any:
        """Add."""
        return ops.add(x, y)

    def multiply(self, x: Any, y: Any) -> Any:
        """Multiply."""
        return ops.multiply(x, y)

    def inverse_root(self, x: Any) -> Any:
        """1 / sqrt(x)."""
        return ops.divide(self.constant(np.ones(1, dtype=np.float32)), ops.sqrt(x))

    def concat(self, values: Sequence[Any]) -> Any:
        """Concat of columns."""
        return ops.concat(list(values), 1)

    def columns(self, x: Any, first: int, last: int) -> Any:
        """Slice."""
        return ops.slice(x, *(self._integers([number]) for number in (first, last, 1, 1)))

    def reduce(self, kind: Reduction, x: Any, axis: int = 1) -> Any:
        """The reduction of that kind."""
        return _REDUCE[kind](x, self._integers([axis]), True)

    def rows_of(self, x: Any, columns: int) -> Any:
        """Reshape."""
        return ops.reshape(x, self._integers([-1, columns]), False)

    def vectors(self, x: Any, count: int, dim: int) -> Any:
        """Reshape to three axes."""
        return ops.reshape(x, self._integers([-1, count, dim]), False)

    def pair_products(self, vectors: Any, count: int) -> Any:
        """A product of matrices, of which the lower triangle is gathered."""
        square = self.rows_of(ops.matmul(vectors, vectors, False, True), count * count)
        rows, columns = np.tril_indices(count, -1)
        return ops.gather(square, self._integers(rows * count + columns), self._integers([1]))

    def squeezed(self, x: Any) -> Any:
        """Squeeze of the middle axis."""
        return ops.squeeze(x, self._integers([1]))

    def _integers(self, numbers: Sequence[int] | np.ndarray) -> Any:
        return ops.constant(np.asarray(numbers, dtype=np.int64))
