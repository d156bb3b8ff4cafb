"""The plain-torch truth of dense programs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from megalith.ops.dense.functions_twin import apply_function_twin, sigmoid_twin
from megalith.ops.dense.linear_twin import bf16_linear_twin, int8_linear_twin
from megalith.ops.dense.operations import DenseDescription, DenseOperation, numbers_of, prepared_weight
from megalith.ops.dense.quantise import QuantisedWeight
from megalith.ops.interaction.dot_twin import dot_interaction_twin


def run_program_twin(description: DenseDescription, inputs: Mapping[str, Tensor]) -> Tensor:
    """[batch, outputs] of float32 inputs [batch, columns]."""
    values = {name: tensor.float() for name, tensor in inputs.items()}
    for operation in description.operations:
        values[operation.output] = _run(operation, [values[name] for name in operation.inputs])
    columns = [
        sigmoid_twin(values[one.value]) if one.probability else values[one.value]
        for one in description.outputs
    ]
    return torch.cat(columns, 1)


def _run(operation: DenseOperation, given: list[Tensor]) -> Tensor:
    kind, first = operation.kind, given[0]
    if kind == "linear":
        return _linear(operation, first)
    if kind == "activation":
        return apply_function_twin(operation.function, first)
    if kind == "concat":
        return torch.cat(given, 1)
    if kind == "columns":
        return first[:, operation.first : operation.last]
    if kind == "add":
        total = given[0]
        for other in given[1:]:
            total = total + other
        return total
    if kind == "multiply":
        return first * given[1]
    if kind == "multiply_add":
        return first * given[1] + given[2]
    if kind == "affine":
        factor, addend = numbers_of(operation.weight), numbers_of(operation.bias)
        return first * (1.0 if factor is None else factor) + (0.0 if addend is None else addend)
    if kind == "layer_norm":
        return _layer_norm(operation, first)
    if kind == "sum_columns":
        return first.sum(1, keepdim=True)
    if kind == "dot_interaction":
        return dot_interaction_twin(first if len(given) == 2 else None, given[-1], operation.dim)
    vectors = first.unflatten(1, (-1, operation.dim)) if first.shape[1] else first[:, :, None]
    return 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)


def _linear(operation: DenseOperation, x: Tensor) -> Tensor:
    weight, bias = prepared_weight(operation), operation.bias
    assert bias is None or isinstance(bias, Tensor)
    columns = (weight.codes if isinstance(weight, QuantisedWeight) else weight).shape[1]
    rows = x.reshape(len(x) * operation.groups, columns)
    if isinstance(weight, QuantisedWeight):
        made = int8_linear_twin(rows, weight, bias, operation.function)
    elif operation.precision == "bfloat16":
        made = bf16_linear_twin(rows, weight, bias, operation.function)
    else:
        sums = torch.nn.functional.linear(rows, weight, None if bias is None else bias.float())
        made = apply_function_twin(operation.function, sums)
    return made.reshape(len(x), -1) if len(x) else made.new_zeros(0, operation.groups * made.shape[1])


def _layer_norm(operation: DenseOperation, x: Tensor) -> Tensor:
    apart = x - x.mean(1, keepdim=True)
    value = apart / torch.sqrt(apart.square().mean(1, keepdim=True) + operation.eps)
    weight, bias = numbers_of(operation.weight), numbers_of(operation.bias)
    value = value if weight is None else value * weight
    return value if bias is None else value + bias
