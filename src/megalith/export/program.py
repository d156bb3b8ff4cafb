"""The dense part of a model as data: operations on values of [samples, columns], in the order they run.

A frozen model carries this and its weights, so that nothing that is loaded runs code, and every backend
builds from it what it runs. `megalith.export.trace` makes one of a model, `megalith.export.interpret` runs
one in plain torch: that is what the others must equal.

Values have names. A program begins with its inputs, `dense` and `embedded` (pooled vectors side by side, as
tables and their features stand in the manifest), and every operation names those it reads and the one it
makes. Weights are tensors of `dense.safetensors`, by name.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from megalith.core.config import Config

DENSE, EMBEDDED = "dense", "embedded"
Function = Literal["none", "relu", "gelu", "silu", "sigmoid"]
Precision = Literal["float32", "bfloat16", "int8"]


class Linear(Config):
    """x W^T + b, then `function`. Weight is [out, in]. With `groups`, x is that many vectors side by side,
    each of which passes through the same layer."""

    kind: Literal["linear"] = "linear"
    inputs: tuple[str]
    output: str
    weight: str
    bias: str | None = None
    function: Function = "none"
    groups: int = Field(default=1, ge=1)
    precision: Precision = "float32"


class Activation(Config):
    """`function` of every element."""

    kind: Literal["activation"] = "activation"
    inputs: tuple[str]
    output: str
    function: Function


class Concat(Config):
    """The columns of all inputs side by side."""

    kind: Literal["concat"] = "concat"
    inputs: tuple[str, ...] = Field(min_length=1)
    output: str


class Columns(Config):
    """Columns `first` up to `last`."""

    kind: Literal["columns"] = "columns"
    inputs: tuple[str]
    output: str
    first: int = Field(ge=0)
    last: int = Field(ge=1)


class Add(Config):
    """The sum of all inputs, from left to right; each of as many columns, or of one, which counts for all."""

    kind: Literal["add"] = "add"
    inputs: tuple[str, ...] = Field(min_length=2)
    output: str


class Multiply(Config):
    """The product of both inputs, element by element; each of as many columns, or of one."""

    kind: Literal["multiply"] = "multiply"
    inputs: tuple[str, str]
    output: str


class MultiplyAdd(Config):
    """first * second + third, element by element: what a cross layer does with its linear one's output."""

    kind: Literal["multiply_add"] = "multiply_add"
    inputs: tuple[str, str, str]
    output: str


class Affine(Config):
    """x * weight + bias, with a number of each for every column (batch normalisation is that), or for all."""

    kind: Literal["affine"] = "affine"
    inputs: tuple[str]
    output: str
    weight: str | float = 1.0
    bias: str | float = 0.0


class LayerNorm(Config):
    """(x - mean) / sqrt(variance + eps) over the columns of a sample, times weight plus bias."""

    kind: Literal["layer_norm"] = "layer_norm"
    inputs: tuple[str]
    output: str
    weight: str | None = None
    bias: str | None = None
    eps: float = Field(gt=0)


class SumColumns(Config):
    """The sum of a sample's columns, as one column."""

    kind: Literal["sum_columns"] = "sum_columns"
    inputs: tuple[str]
    output: str


class DotInteraction(Config):
    """[first | products of all pairs of vectors], as `megalith.ops.interaction` has it; the last input is
    the vectors of `dim` columns side by side, the one before it, where there is one, `first`."""

    kind: Literal["dot_interaction"] = "dot_interaction"
    inputs: tuple[str, ...] = Field(min_length=1, max_length=2)
    output: str
    dim: int = Field(ge=1)


class PairSum(Config):
    """The sum of the dot products of all pairs of vectors of `dim` columns, as one column: DeepFM's term."""

    kind: Literal["pair_sum"] = "pair_sum"
    inputs: tuple[str]
    output: str
    dim: int = Field(ge=1)


Operation = Annotated[
    Linear
    | Activation
    | Concat
    | Columns
    | Add
    | Multiply
    | MultiplyAdd
    | Affine
    | LayerNorm
    | SumColumns
    | DotInteraction
    | PairSum,
    Field(discriminator="kind"),
]


class ProgramOutput(Config):
    """A task: the value of one column that holds its logit, and what is served of it."""

    name: str = "score"
    value: str
    kind: Literal["probability", "number"] = "probability"
    """`probability` is the sigmoid of the value, `number` the value itself."""


class ModelProgram(Config):
    """Operations and what they give."""

    inputs: dict[str, int]
    """Columns of each."""
    operations: tuple[Operation, ...]
    outputs: tuple[ProgramOutput, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_defined(self) -> ModelProgram:
        known = set(self.inputs)
        for position, operation in enumerate(self.operations):
            for name in operation.inputs:
                if name not in known:
                    raise ValueError(f"operation {position} reads '{name}', which none before it makes")
            if operation.output in known:
                raise ValueError(f"operation {position} makes '{operation.output}' a second time")
            known.add(operation.output)
        for output in self.outputs:
            if output.value not in known:
                raise ValueError(f"output '{output.name}' is '{output.value}', which no operation makes")
        return self

    @property
    def weights(self) -> tuple[str, ...]:
        """Tensors that the operations read, each once."""
        found: dict[str, None] = {}
        for operation in self.operations:
            for key in ("weight", "bias"):
                name = getattr(operation, key, None)
                if isinstance(name, str):
                    found[name] = None
        return tuple(found)
