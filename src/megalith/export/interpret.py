"""Runs a program in plain torch: what every backend's dense part must equal.

Layers in few bits are those of the native core: the twins in `megalith.ops.dense` define every bit of them,
and those of bfloat16 add up column by column, which a gate over many samples cannot wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from megalith.export.program import (
    DENSE,
    EMBEDDED,
    Activation,
    Add,
    Affine,
    Columns,
    Concat,
    DotInteraction,
    LayerNorm,
    Linear,
    ModelProgram,
    Multiply,
    MultiplyAdd,
    Operation,
    PairSum,
    SumColumns,
)
from megalith.export.stored_weights import PRODUCTS, layer_weight
from megalith.models.layers.interaction import factorization_term
from megalith.models.layers.linear import linear_relu
from megalith.ops.dense.linear import bf16_linear, int8_linear
from megalith.ops.dense.quantise import QuantisedWeight
from megalith.ops.interaction.dot import dot_interaction

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda values: values,
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}


def run_program(
    program: ModelProgram, weights: Mapping[str, Tensor], dense: Tensor, embedded: Tensor
) -> Tensor:
    """The values of all outputs, [samples, outputs]: logits, of which nothing is a probability yet."""
    values = {DENSE: dense, EMBEDDED: embedded}
    left = Counter(name for operation in program.operations for name in operation.inputs)
    left.update(output.value for output in program.outputs)
    for operation in program.operations:
        inputs = [values[name] for name in operation.inputs]
        values[operation.output] = run_operation(operation, weights, inputs)
        # What nothing reads any more need not stay.
        left.subtract(operation.inputs)
        for name in set(operation.inputs):
            if not left[name]:
                del values[name]
    columns = [values[output.value].reshape(len(dense)) for output in program.outputs]
    return torch.stack(columns, dim=1)


def run_operation(operation: Operation, weights: Mapping[str, Tensor], inputs: list[Tensor]) -> Tensor:
    """One operation on values of [samples, columns]."""
    first = inputs[0]
    match operation:
        case Linear():
            return _linear(operation, weights, first)
        case Activation():
            return _FUNCTIONS[operation.function](first)
        case Concat():
            return torch.cat(inputs, dim=1)
        case Columns():
            return first[:, operation.first : operation.last]
        case Add():
            return reduce(torch.add, inputs)
        case Multiply():
            return first * inputs[1]
        case MultiplyAdd():
            return first * inputs[1] + inputs[2]
        case Affine():
            scale, bias = (
                weights[each] if isinstance(each, str) else each
                for each in (operation.weight, operation.bias)
            )
            return first * scale + bias
        case LayerNorm():
            names = operation.weight, operation.bias
            factors = [None if name is None else weights[name] for name in names]
            return F.layer_norm(first, first.shape[1:], factors[0], factors[1], operation.eps)
        case SumColumns():
            return first.sum(dim=1, keepdim=True)
        case DotInteraction():
            front = first if len(inputs) == 2 else None
            return dot_interaction(front, inputs[-1], operation.dim)
        case PairSum():
            return factorization_term(first.unflatten(1, (-1, operation.dim))).unsqueeze(1)


def _linear(operation: Linear, weights: Mapping[str, Tensor], given: Tensor) -> Tensor:
    weight = layer_weight(operation, weights, PRODUCTS)
    bias = None if operation.bias is None else weights[operation.bias]
    columns = weights[operation.weight].shape[1]
    vectors = given if operation.groups == 1 else given.reshape(len(given) * operation.groups, columns)
    if isinstance(weight, QuantisedWeight):
        found = int8_linear(vectors.contiguous(), weight, bias, operation.function)
    elif operation.precision == "bfloat16":
        found = bf16_linear(vectors.contiguous(), weight, bias, operation.function)
    elif operation.function == "relu":
        found = linear_relu(vectors, weight, bias)
    else:
        found = _FUNCTIONS[operation.function](F.linear(vectors, weight, bias))
    return found if operation.groups == 1 else found.view(len(given), -1)
