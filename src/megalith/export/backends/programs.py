"""What a graph is built of: the program at a precision, its products, and the bytes of its weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.backends.base import ModelSource
from megalith.export.program import Linear, ModelProgram
from megalith.ops.dense.quantise import Products

_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def program_of(model: ModelSource, precision: str | None = None) -> ModelProgram:
    """The program of a model; with `float32`, every layer in that."""
    program = model.manifest.program
    if precision is None:
        return program
    if precision != "float32":
        raise ConfigError(f"Option precision={precision} is not known; use float32, or leave it out.")
    plain = tuple(
        each.model_copy(update={"precision": "float32"}) if isinstance(each, Linear) else each
        for each in program.operations
    )
    return program.model_copy(update={"operations": plain})


def products_of(model: ModelSource) -> Products:
    """Codes of the weights of layers in eight bits."""
    return "u8s8" if model.manifest.contract.products == "u8s8" else "u8s7"


def weight_bytes(program: ModelProgram, weights: Mapping[str, Tensor]) -> int:
    """Bytes of all weights, each at the precision of its layer."""
    narrow = {each.weight: each for each in program.operations if isinstance(each, Linear)}
    total = 0
    for name in program.weights:
        layer = narrow.get(name)
        total += weights[name].numel() * (4 if layer is None else _BYTES[layer.precision])
        if layer is not None and layer.precision == "int8":
            total += 4 * len(weights[name])
    return total
