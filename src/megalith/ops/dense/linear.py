"""Single linear layers of reduced precision, native; their twins are in `linear_twin.py`.

These pack the weight in every call. A layer that runs often belongs into a `DenseProgram`, which packs once.
"""

from __future__ import annotations

from torch import Tensor

from megalith.ops.dense.functions_twin import Function
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput, DensePrecision
from megalith.ops.dense.program import DenseProgram
from megalith.ops.dense.quantise import QuantisedWeight


def int8_linear(
    x: Tensor, weight: QuantisedWeight, bias: Tensor | None = None, function: Function = "none"
) -> Tensor:
    """`int8_linear_twin`, bit for bit."""
    return _run_layer(x, weight, bias, function, weight.products)


def bf16_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, function: Function = "none") -> Tensor:
    """`bf16_linear_twin`, bit for bit."""
    return _run_layer(x, weight, bias, function, "bfloat16")


def _run_layer(
    x: Tensor,
    weight: Tensor | QuantisedWeight,
    bias: Tensor | None,
    function: Function,
    precision: DensePrecision,
) -> Tensor:
    layer = DenseOperation("linear", ("x",), "y", weight, bias, function, precision=precision)
    description = DenseDescription({"x": x.shape[1]}, (layer,), (DenseOutput("y", probability=False),))
    return DenseProgram(description).run(x)
