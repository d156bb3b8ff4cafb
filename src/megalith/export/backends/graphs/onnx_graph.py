"""Programs as ONNX models, built with the `onnx` package's own helpers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from megalith.export.backends.graphs.linear import LinearWeights
from megalith.export.backends.graphs.lowering import GraphBuilder, Reduction
from megalith.ops.dense.quantise import SMALLEST_SCALE

_OPSET, _IR = 18, 9
Rounding = Literal["sample", "batch"]
_REDUCE = {"sum": "ReduceSum", "mean": "ReduceMean", "min": "ReduceMin", "max": "ReduceMax"}


class OnnxBuilder(GraphBuilder[str]):
    """Builds an ONNX graph; a value is the name of a tensor in it.

    `rounding` is whose range the activations of layers in eight bits are rounded by: that of each `sample`,
    as the twins do, or that of the whole `batch`, which is quicker and lets a score depend on the samples
    beside it.
    """

    def __init__(self, rounding: Rounding = "sample") -> None:
        self._rounding = rounding
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._count = 0

    def model(self) -> bytes:
        """The model, as a file of it would hold it."""
        graph = helper.make_graph(
            self._nodes, "program", self._inputs, self._outputs, list(self._constants.values())
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="megalith"
        )
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString()
        return content

    def input(self, name: str, columns: int) -> str:
        """A float32 input of any number of samples."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", columns]))
        return name

    def output(self, name: str, value: str) -> None:
        """The value without its axis of one column."""
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]))
        self._node("Squeeze", [value, self._integers([1])], name=name)

    def constant(self, numbers: np.ndarray) -> str:
        """An initializer."""
        self._count += 1
        name = f"megalith.constant.{self._count}"
        self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(numbers), name)
        return name

    def linear(self, x: str, weight: np.ndarray, bias: np.ndarray | None) -> str:
        """Gemm, which onnxruntime joins with the activation behind it."""
        inputs = [x, self.constant(weight)]
        if bias is not None:
            inputs.append(self.constant(bias))
        return self._node("Gemm", inputs, transB=1)

    def integer_linear(self, x: str, weights: LinearWeights) -> str:
        """MatMulInteger between codes; zero points are taken off its exact sums."""
        assert weights.codes is not None
        assert weights.scales is not None
        codes = self.constant(weights.codes.T)
        sums = self.constant(weights.code_sums)
        if self._rounding == "batch":
            rounded, scale, zero = (self._name() for _ in range(3))
            self._nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [rounded, scale, zero]))
            products = self._node("MatMulInteger", [rounded, codes, zero])
        else:
            rounded, scale, whole = self._rounded_samples(x)
            products = self._node("MatMulInteger", [rounded, codes])
            products = self._node("Sub", [products, self._node("Mul", [whole, sums])])
        scales = self.multiply(scale, self.constant(weights.scales))
        y = self.multiply(self._node("Cast", [products], to=TensorProto.FLOAT), scales)
        return y if weights.bias is None else self.add(y, self.constant(weights.bias))

    def _rounded_samples(self, x: str) -> tuple[str, str, str]:
        """Codes, scales and zero points (as int32) of every sample: `quantise_activations`."""
        none, most = self._number(0.0), self._number(255.0)
        low = self._node("Min", [self.reduce("min", x), none])
        high = self._node("Max", [self.reduce("max", x), none])
        scale = self._node("Sub", [self._node("Div", [high, most]), self._node("Div", [low, most])])
        usable = self._node("GreaterOrEqual", [scale, self._number(SMALLEST_SCALE)])
        scale = self._node("Where", [usable, scale, none])
        inverse = self._node("Where", [usable, self._node("Reciprocal", [scale]), none])
        zero = self._clipped(self._node("Round", [self.multiply(self._node("Neg", [low]), inverse)]))
        codes = self.add(self._node("Round", [self.multiply(x, inverse)]), zero)
        codes = self._node("Cast", [self._clipped(codes)], to=TensorProto.UINT8)
        return codes, scale, self._node("Cast", [zero], to=TensorProto.INT32)

    def _clipped(self, x: str) -> str:
        bounds = [self.constant(np.array(bound, dtype=np.float32)) for bound in (0.0, 255.0)]
        return self._node("Clip", [x, *bounds])

    def rounded_to_bfloat16(self, x: str) -> str:
        """There and back."""
        return self._node("Cast", [self._node("Cast", [x], to=TensorProto.BFLOAT16)], to=TensorProto.FLOAT)

    def function(self, name: str, x: str) -> str:
        """GELU by Erf, which any provider knows."""
        if name == "relu":
            return self._node("Relu", [x])
        if name == "silu":
            return self.multiply(x, self._node("Sigmoid", [x]))
        if name == "gelu":
            share = self._node("Erf", [self.multiply(x, self._number(0.5**0.5))])
            half = self.multiply(x, self._number(0.5))
            return self.multiply(half, self.add(share, self._number(1.0)))
        return self._node("Sigmoid", [x])

    def add(self, x: str, y: str) -> str:
        """Add."""
        return self._node("Add", [x, y])

    def multiply(self, x: str, y: str) -> str:
        """Mul."""
        return self._node("Mul", [x, y])

    def inverse_root(self, x: str) -> str:
        """Sqrt, then Reciprocal."""
        return self._node("Reciprocal", [self._node("Sqrt", [x])])

    def concat(self, values: Sequence[str]) -> str:
        """Concat of columns."""
        return self._node("Concat", list(values), axis=1)

    def columns(self, x: str, first: int, last: int) -> str:
        """Slice."""
        bounds = [self._integers([number]) for number in (first, last, 1)]
        return self._node("Slice", [x, *bounds])

    def reduce(self, kind: Reduction, x: str, axis: int = 1) -> str:
        """The reduction of that kind."""
        return self._node(_REDUCE[kind], [x, self._integers([axis])], keepdims=1)

    def rows_of(self, x: str, columns: int) -> str:
        """Reshape."""
        return self._node("Reshape", [x, self._integers([-1, columns])])

    def vectors(self, x: str, count: int, dim: int) -> str:
        """Reshape to three axes."""
        return self._node("Reshape", [x, self._integers([-1, count, dim])])

    def pair_products(self, vectors: str, count: int) -> str:
        """A product of matrices, of which the lower triangle is gathered."""
        turned = self._node("Transpose", [vectors], perm=[0, 2, 1])
        square = self.rows_of(self._node("MatMul", [vectors, turned]), count * count)
        rows, columns = np.tril_indices(count, -1)
        return self._node("Gather", [square, self._integers(rows * count + columns)], axis=1)

    def squeezed(self, x: str) -> str:
        """Squeeze of the middle axis."""
        return self._node("Squeeze", [x, self._integers([1])])

    def _integers(self, numbers: Sequence[int] | np.ndarray) -> str:
        return self.constant(np.asarray(numbers, dtype=np.int64))

    def _number(self, number: float) -> str:
        return self.constant(np.array([number], dtype=np.float32))

    def _name(self) -> str:
        self._count += 1
        return f"megalith.value.{self._count}"

    def _node(self, kind: str, inputs: list[str], name: str | None = None, **attributes: Any) -> str:
        output = name or self._name()
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output
