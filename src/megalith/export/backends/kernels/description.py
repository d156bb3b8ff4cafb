"""Programs of a manifest as `megalith.ops.dense` runs them: with tensors instead of names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from megalith.export.backends.base import Outputs
from megalith.export.program import Affine, LayerNorm, Linear, ModelProgram, Operation
from megalith.export.stored_weights import layer_weight
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput
from megalith.ops.dense.quantise import Products


def dense_description(
    program: ModelProgram, weights: Mapping[str, Tensor], products: Products
) -> DenseDescription:
    """The program with its weights; layers in eight bits have these products."""
    return DenseDescription(
        dict(program.inputs),
        tuple(_operation(each, weights, products) for each in program.operations),
        tuple(DenseOutput(task.value, task.kind == "probability") for task in program.outputs),
    )


def outputs_by_task(program: ModelProgram, values: Tensor) -> Outputs:
    """What a description gives, [batch, tasks], as one output a task."""
    return {task.name: values[:, column] for column, task in enumerate(program.outputs)}


def _operation(operation: Operation, weights: Mapping[str, Tensor], products: Products) -> DenseOperation:
    fields = operation.model_dump()
    if isinstance(operation, Linear | Affine | LayerNorm):
        for key in ("weight", "bias"):
            if isinstance(fields[key], str):
                fields[key] = weights[fields[key]]
    if isinstance(operation, Linear):
        fields["weight"] = layer_weight(operation, weights, products)
    if fields.get("precision") == "int8":
        fields["precision"] = products
    return DenseOperation(**fields)
