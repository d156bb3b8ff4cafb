"""A dense part as plain data: operations on values of [samples, columns], with their weights.

What `megalith.export.program` describes, without names of files: operations hold tensors, so that this layer
knows nothing of folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.dense.functions_twin import FUNCTIONS, Function
from megalith.ops.dense.quantise import QuantisedWeight, quantise_weight

OperationKind = Literal[
    "linear",
    "activation",
    "concat",
    "add",
    "multiply",
    "multiply_add",
    "affine",
    "layer_norm",
    "sum_columns",
    "dot_interaction",
    "pair_sum",
    "columns",
]
DensePrecision = Literal["float32", "bfloat16", "u8s7", "u8s8"]
DENSE_PRECISIONS: tuple[DensePrecision, ...] = ("float32", "bfloat16", "u8s7", "u8s8")
"""In the order of their numbers in csrc/dense/layer.h."""


@dataclass(frozen=True, eq=False)
class DenseOperation:
    """One operation; `megalith.export.program` says what each kind does with its fields."""

    kind: OperationKind
    inputs: tuple[str, ...]
    output: str
    weight: Tensor | QuantisedWeight | float | None = None
    """[out, in] of a linear layer; one that is to run on bytes may be quantised already."""
    bias: Tensor | float | None = None
    function: Function = "none"
    groups: int = 1
    precision: DensePrecision = "float32"
    first: int = 0
    last: int = 0
    eps: float = 0.0
    dim: int = 1


@dataclass(frozen=True)
class DenseOutput:
    """A value that is served, or its sigmoid."""

    value: str
    probability: bool = True


@dataclass(frozen=True, eq=False)
class DenseDescription:
    """Inputs with their columns, operations in the order they run, outputs. Refuses what does not fit."""

    inputs: Mapping[str, int]
    operations: tuple[DenseOperation, ...]
    outputs: tuple[DenseOutput, ...]
    columns: Mapping[str, int] = field(init=False)
    """Of every value."""

    def __post_init__(self) -> None:
        columns = dict(self.inputs)
        for position, operation in enumerate(self.operations):
            for name in operation.inputs:
                if name not in columns:
                    raise ConfigError(f"Operation {position} reads '{name}', which none before it makes.")
            if operation.output in columns:
                raise ConfigError(f"Operation {position} makes '{operation.output}' a second time.")
            problem, made = _columns_of(operation, [columns[name] for name in operation.inputs])
            if problem:
                raise ConfigError(f"Operation {position} ({operation.kind}) {problem}.")
            columns[operation.output] = made
        if not self.inputs:
            raise ConfigError("A dense program has no input; name at least one.")
        if not self.outputs:
            raise ConfigError("A dense program has no output; name at least one.")
        for output in self.outputs:
            if output.value not in columns:
                raise ConfigError(f"Output '{output.value}' is a value that no operation makes.")
        object.__setattr__(self, "columns", columns)

    @property
    def output_columns(self) -> int:
        """Of all outputs side by side; a task has one."""
        return sum(self.columns[one.value] for one in self.outputs)


def prepared_weight(operation: DenseOperation) -> Tensor | QuantisedWeight:
    """The weight of a linear layer as its precision wants it."""
    weight = operation.weight
    if isinstance(weight, QuantisedWeight):
        return weight
    assert isinstance(weight, Tensor)
    if operation.precision == "u8s7" or operation.precision == "u8s8":
        return quantise_weight(weight, operation.precision)
    return weight.detach().float().contiguous()


def _columns_of(operation: DenseOperation, given: list[int]) -> tuple[str | None, int]:
    """(why it cannot run, columns of its output)."""
    kind, first = operation.kind, given[0] if given else 0
    count = {"multiply": (2, 2), "multiply_add": (3, 3), "dot_interaction": (1, 2)}.get(kind, (1, 1))
    if kind in ("concat", "add"):
        count = (1, 1 << 30) if kind == "concat" else (2, 1 << 30)
    if not count[0] <= len(given) <= count[1]:
        return f"has {len(given)} inputs", 0
    if operation.function not in FUNCTIONS:
        return f"has the unknown function '{operation.function}'", 0
    if kind == "linear":
        return _columns_of_linear(operation, first)
    if kind == "concat":
        return None, sum(given)
    if kind == "columns":
        inside = 0 <= operation.first < operation.last <= first
        return (
            None if inside else f"takes columns beyond the {first} of its input",
            operation.last - operation.first,
        )
    if kind in ("add", "multiply", "multiply_add"):
        widest = max(given)
        return None if all(one in (1, widest) for one in given) else f"joins {given} columns", widest
    if kind in ("affine", "layer_norm"):
        return _check_numbers(operation, first), first
    if kind == "sum_columns":
        return None, 1
    if kind in ("dot_interaction", "pair_sum"):
        return _columns_of_vectors(operation, given)
    return (None, first) if kind == "activation" else ("is of an unknown kind", 0)


def _columns_of_linear(operation: DenseOperation, columns: int) -> tuple[str | None, int]:
    weight, groups = operation.weight, operation.groups
    held = weight.codes if isinstance(weight, QuantisedWeight) else weight
    if not isinstance(held, Tensor) or held.dim() != 2:
        return "has no weight [out, in]", 0
    made, taken = held.shape
    if operation.precision not in DENSE_PRECISIONS:
        return f"has the unknown precision '{operation.precision}'", 0
    if isinstance(weight, QuantisedWeight) and weight.products != operation.precision:
        return f"is {operation.precision} but its weight is {weight.products}", 0
    if groups < 1 or groups * taken != columns:
        return f"takes {groups} x {taken} columns but reads {columns}", 0
    bias = operation.bias
    if bias is not None and not (isinstance(bias, Tensor) and tuple(bias.shape) == (made,)):
        return f"has a bias that is not [{made}]", 0
    return None, groups * made


def _check_numbers(operation: DenseOperation, columns: int) -> str | None:
    for name, given in (("weight", operation.weight), ("bias", operation.bias)):
        if isinstance(given, Tensor) and tuple(given.shape) != (columns,):
            return f"has a {name} that is not [{columns}]"
        if isinstance(given, QuantisedWeight):
            return f"has a {name} of bytes"
    return "has no columns" if operation.kind == "layer_norm" and not columns else None


def _columns_of_vectors(operation: DenseOperation, given: list[int]) -> tuple[str | None, int]:
    dim = operation.dim
    if dim < 1 or any(one % dim for one in given) or (len(given) == 2 and given[0] != dim):
        return f"has inputs of {given} columns, which are not vectors of {dim}", 0
    if operation.kind == "pair_sum":
        return None, 1
    count = sum(given) // dim
    return None, (dim if len(given) == 2 else 0) + count * (count - 1) // 2


def numbers_of(given: Tensor | QuantisedWeight | float | None) -> Tensor | None:
    """Weight or bias of an affine operation or a norm, as float32; one number stands for all columns."""
    if given is None or isinstance(given, QuantisedWeight):
        return None
    return given.detach().float().contiguous() if isinstance(given, Tensor) else torch.tensor([float(given)])
