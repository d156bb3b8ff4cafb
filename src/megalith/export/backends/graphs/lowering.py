"""A program as few primitives: what a compiler of graphs must be taught to run any frozen model.

`GraphBuilder` is those primitives. A library is taught once, by a subclass; `lower` then builds any program
with it. Values are of [samples, columns] unless a primitive says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.backends.graphs.linear import LinearWeights, linear_weights
from megalith.export.program import (
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
from megalith.ops.dense.quantise import Products

Value = TypeVar("Value")
Reduction = Literal["sum", "mean", "min", "max"]


class GraphBuilder(ABC, Generic[Value]):
    """Primitives of a graph; numbers are float32 where nothing else is said."""

    @abstractmethod
    def input(self, name: str, columns: int) -> Value:
        """An input of the graph, [samples, columns]."""

    @abstractmethod
    def output(self, name: str, value: Value) -> None:
        """Makes a value of one column an output of [samples]."""

    @abstractmethod
    def constant(self, numbers: np.ndarray) -> Value:
        """Numbers that are part of the graph, of any shape."""

    @abstractmethod
    def linear(self, x: Value, weight: np.ndarray, bias: np.ndarray | None) -> Value:
        """x W^T + b in float32; weight is [out, in]."""

    @abstractmethod
    def integer_linear(self, x: Value, weights: LinearWeights) -> Value:
        """The layer in eight bits, as `megalith.ops.dense` defines it: every sample is rounded by its own
        scale, sums are exact."""

    @abstractmethod
    def rounded_to_bfloat16(self, x: Value) -> Value:
        """Every element rounded to bfloat16, half to even, as float32."""

    @abstractmethod
    def function(self, name: str, x: Value) -> Value:
        """`relu`, `gelu` (by erf), `silu` or `sigmoid` of every element."""

    @abstractmethod
    def add(self, x: Value, y: Value) -> Value:
        """x + y; one of them may have one column, or be a constant of [columns] or [1]."""

    @abstractmethod
    def multiply(self, x: Value, y: Value) -> Value:
        """x * y, as `add`."""

    @abstractmethod
    def inverse_root(self, x: Value) -> Value:
        """1 / sqrt(x)."""

    @abstractmethod
    def concat(self, values: Sequence[Value]) -> Value:
        """Columns side by side."""

    @abstractmethod
    def columns(self, x: Value, first: int, last: int) -> Value:
        """Columns `first` up to `last`."""

    @abstractmethod
    def reduce(self, kind: Reduction, x: Value, axis: int = 1) -> Value:
        """The sum, mean, least or greatest over an axis, which stays with one element."""

    @abstractmethod
    def rows_of(self, x: Value, columns: int) -> Value:
        """The same numbers in rows of `columns`."""

    @abstractmethod
    def vectors(self, x: Value, count: int, dim: int) -> Value:
        """[samples, count * dim] as [samples, count, dim]."""

    @abstractmethod
    def pair_products(self, vectors: Value, count: int) -> Value:
        """Dot products of all pairs of [samples, count, dim]: [samples, pairs], row by row of the lower
        triangle without its diagonal."""

    @abstractmethod
    def squeezed(self, x: Value) -> Value:
        """[samples, 1, columns] as [samples, columns]."""


def lower(
    program: ModelProgram, weights: Mapping[str, Tensor], products: Products, builder: GraphBuilder[Value]
) -> None:
    """Builds the program: its inputs, operations, and an output for every task."""
    values = {name: builder.input(name, count) for name, count in program.inputs.items() if count}
    columns = dict(program.inputs)
    lowering = _Lowering(builder, weights, products)
    for operation in program.operations:
        if any(name not in values for name in operation.inputs):
            # Of no columns, such as the numbers of a model that has none.
            operation = operation.model_copy(
                update={"inputs": tuple(name for name in operation.inputs if name in values)}
            )
        inputs = [values[name] for name in operation.inputs]
        widths = [columns[name] for name in operation.inputs]
        value, width = lowering.build(operation, inputs, widths)
        values[operation.output], columns[operation.output] = value, width
    for task in program.outputs:
        value = values[task.value]
        builder.output(task.name, builder.function("sigmoid", value) if task.kind == "probability" else value)


class _Lowering(Generic[Value]):
    def __init__(
        self, builder: GraphBuilder[Value], weights: Mapping[str, Tensor], products: Products
    ) -> None:
        self.make, self.weights, self.products = builder, weights, products

    def build(self, operation: Operation, inputs: list[Value], widths: list[int]) -> tuple[Value, int]:
        """The value of an operation, and its columns."""
        make, x = self.make, inputs[0]
        match operation:
            case Linear():
                return self.linear(operation, x)
            case Activation():
                return make.function(operation.function, x) if operation.function != "none" else x, widths[0]
            case Concat():
                return (make.concat(inputs) if len(inputs) > 1 else x), sum(widths)
            case Columns():
                return make.columns(x, operation.first, operation.last), operation.last - operation.first
            case Add():
                total = x
                for other in inputs[1:]:
                    total = make.add(total, other)
                return total, max(widths)
            case Multiply():
                return make.multiply(x, inputs[1]), max(widths)
            case MultiplyAdd():
                return make.add(make.multiply(x, inputs[1]), inputs[2]), max(widths)
            case Affine():
                scaled = make.multiply(x, self.number(operation.weight))
                return make.add(scaled, self.number(operation.bias)), widths[0]
            case LayerNorm():
                return self.layer_norm(operation, x), widths[0]
            case SumColumns():
                return make.reduce("sum", x), 1
            case DotInteraction():
                return self.interaction(operation, inputs, widths)
            case PairSum():
                return self.pair_sum(operation, x, widths[0]), 1
        raise ConfigError(f"A program has an operation '{operation.kind}' that graphs do not know yet.")

    def number(self, number: str | float) -> Value:
        found = self.weights[number] if isinstance(number, str) else torch.tensor([number])
        return self.make.constant(found.float().reshape(-1).numpy())

    def linear(self, layer: Linear, x: Value) -> tuple[Value, int]:
        make, found = self.make, linear_weights(layer, self.weights, self.products)
        out, columns = found.shape
        if layer.groups > 1:
            x = make.rows_of(x, columns)
        if layer.precision == "int8":
            y = make.integer_linear(x, found)
        else:
            if layer.precision == "bfloat16":
                x = make.rounded_to_bfloat16(x)
            y = make.linear(x, found.numbers, found.bias)
        if layer.function != "none":
            y = make.function(layer.function, y)
        if layer.groups > 1:
            y = make.rows_of(y, out * layer.groups)
        return y, out * layer.groups

    def layer_norm(self, layer: LayerNorm, x: Value) -> Value:
        make = self.make
        centred = make.add(x, make.multiply(make.reduce("mean", x), self.number(-1.0)))
        variance = make.reduce("mean", make.multiply(centred, centred))
        y = make.multiply(centred, make.inverse_root(make.add(variance, self.number(layer.eps))))
        if layer.weight is not None:
            y = make.multiply(y, self.number(layer.weight))
        return y if layer.bias is None else make.add(y, self.number(layer.bias))

    def interaction(self, layer: DotInteraction, inputs: list[Value], widths: list[int]) -> tuple[Value, int]:
        make = self.make
        joined = make.concat(inputs) if len(inputs) > 1 else inputs[0]
        count = sum(widths) // layer.dim
        pairs = count * (count - 1) // 2
        first = inputs[0] if len(inputs) > 1 else None
        if not pairs:
            return (first, widths[0]) if first is not None else (make.columns(joined, 0, 0), 0)
        products = make.pair_products(make.vectors(joined, count, layer.dim), count)
        if first is None:
            return products, pairs
        return make.concat([first, products]), widths[0] + pairs

    def pair_sum(self, layer: PairSum, x: Value, width: int) -> Value:
        """Half of (square of the sum - sum of the squares), summed over columns."""
        make, count = self.make, width // layer.dim
        vectors = make.vectors(x, count, layer.dim)
        total = make.squeezed(make.reduce("sum", vectors, axis=1))
        whole = make.reduce("sum", make.multiply(total, total))
        parts = make.reduce("sum", make.multiply(x, x))
        return make.multiply(make.add(whole, make.multiply(parts, self.number(-1.0))), self.number(0.5))
