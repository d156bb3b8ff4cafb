"""What a dense part computes: counted from a program and its weights' shapes, or from widths of layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.export.partition.served.model import DenseWork
from megalith.export.program import DotInteraction, Linear, ModelProgram, PairSum

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
_ELEMENTWISE = "float16"
"""What a card computes besides linear layers in."""


class CrossShape(Config):
    """Crosses of all vectors side by side (DCNv2), each through `rank` columns."""

    layers: int = Field(ge=1)
    rank: int = Field(ge=1)


class DenseShape(Config):
    """The dense part of a DLRM by the widths of its layers, in a file of tables."""

    inputs: int = Field(default=0, ge=0)
    """Dense features."""
    bottom: tuple[int, ...] = ()
    """Widths of the MLP over dense features; the last is that of a vector."""
    interaction: Literal["concat", "dot", "dcn"] = "concat"
    """What the top reads: all vectors side by side, products of all pairs beside the bottom's vector, or
    crosses of all vectors."""
    cross: CrossShape | None = None
    top: tuple[int, ...] = ()
    """Widths of the MLP that scores, without its last of one column."""


def work_of_shape(shape: DenseShape, vector_dims: Sequence[int], precision: str) -> DenseWork:
    """The work of an item whose tables give vectors of these dims."""
    linear: list[tuple[int, int]] = []
    bottom_width = _stack(linear, shape.inputs, shape.bottom) if shape.inputs else 0
    width = sum(vector_dims) + bottom_width
    pairs = 0.0
    if shape.interaction == "dot":
        vectors = len(vector_dims) + (bottom_width > 0)
        products = vectors * (vectors - 1) // 2
        pairs = 2.0 * products * max(vector_dims, default=0)
        width = bottom_width + products
    elif shape.interaction == "dcn":
        if shape.cross is None:
            raise ConfigError("dense.interaction: dcn needs dense.cross, such as {layers: 3, rank: 512}.")
        linear += [(width, shape.cross.rank), (shape.cross.rank, width)] * shape.cross.layers
    _stack(linear, width, (*shape.top, 1))
    operations = defaultdict(float, {precision: float(sum(2 * rows * columns for rows, columns in linear))})
    if pairs:
        operations[_ELEMENTWISE] += pairs
    return DenseWork(
        operations=dict(operations),
        weight_bytes=sum((rows * WEIGHT_BYTES[precision] + 4) * columns for rows, columns in linear),
        num_inputs=shape.inputs,
        columns=shape.inputs + sum(vector_dims) + sum(columns for _rows, columns in linear),
    )


def _stack(linear: list[tuple[int, int]], width: int, layers: Sequence[int]) -> int:
    """Adds the layers of an MLP; returns the width of the last."""
    for columns in layers:
        linear.append((width, columns))
        width = columns
    return width


def work_of_program(
    program: ModelProgram, shapes: Mapping[str, Sequence[int]], num_dense: int, precision: str | None = None
) -> DenseWork:
    """The work of a program whose weights have these shapes; a tensor that is missing is named.

    Linear layers are of the program's precisions, unless another is given. Elementwise operations are left
    out: products are what a dense part spends its time on.
    """
    operations: dict[str, float] = defaultdict(float)
    weight_bytes, columns = 0, sum(program.inputs.values())
    widths = dict(program.inputs)
    for operation in program.operations:
        if isinstance(operation, Linear):
            outputs, inputs = _shape_of(operation.weight, shapes)
            own = precision or operation.precision
            operations[own] += 2.0 * inputs * outputs * operation.groups
            weight_bytes += (inputs * WEIGHT_BYTES[own] + 4) * outputs
            widths[operation.output] = outputs * operation.groups
        else:
            widths[operation.output] = _width(operation, widths)
            if isinstance(operation, DotInteraction | PairSum):
                vectors = widths[operation.inputs[-1]] // operation.dim + (len(operation.inputs) > 1)
                operations[_ELEMENTWISE] += float(vectors * (vectors - 1) * operation.dim)
        columns += widths[operation.output]
    return DenseWork(dict(operations), weight_bytes, num_dense, columns, len(program.outputs))


def _shape_of(name: str, shapes: Mapping[str, Sequence[int]]) -> tuple[int, int]:
    if name not in shapes or len(shapes[name]) != 2:
        raise ConfigError(f"The weight '{name}' of the program is no matrix of the model; export it again.")
    outputs, inputs = shapes[name]
    return outputs, inputs


def _width(operation: object, widths: Mapping[str, int]) -> int:
    """Columns of what an operation makes that is no linear layer."""
    kind = getattr(operation, "kind", "")
    inputs = [widths[name] for name in getattr(operation, "inputs", ())]
    if kind == "concat":
        return sum(inputs)
    if kind == "columns":
        return int(getattr(operation, "last", 0)) - int(getattr(operation, "first", 0))
    if kind in ("sum_columns", "pair_sum"):
        return 1
    if isinstance(operation, DotInteraction):
        vectors = inputs[-1] // operation.dim + (len(inputs) > 1)
        return (inputs[0] if len(inputs) > 1 else 0) + vectors * (vectors - 1) // 2
    return max(inputs)
