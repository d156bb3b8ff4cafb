"""Linear layers in few bits: by the native core where it has them, else by their twins. Bits are the same.

The twins define every bit, and those of bfloat16 add up column by column: a gate over many samples needs the
native ones.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from megalith.export.program import Function
from megalith.ops.dense.linear_twin import bf16_linear_twin, int8_linear_twin
from megalith.ops.dense.quantise import Products, quantise_weight

PRODUCTS: Products = "u8s7"
"""Of layers in eight bits: exact on every machine, also by sums of 16 bits."""
_NATIVE = "megalith.ops.dense.linear"


def int8_layer(inputs: Tensor, weight: Tensor, bias: Tensor | None, function: Function) -> Tensor:
    """Eight bits for weights and for inputs, by sample."""
    layer = int8_linear_twin if (native := _native()) is None else native.int8_linear
    found: Tensor = layer(inputs.contiguous(), quantise_weight(weight, PRODUCTS), bias, function)
    return found


def bf16_layer(inputs: Tensor, weight: Tensor, bias: Tensor | None, function: Function) -> Tensor:
    """Weights and inputs in bfloat16, sums in float32."""
    layer = bf16_linear_twin if (native := _native()) is None else native.bf16_linear
    found: Tensor = layer(inputs.contiguous(), weight, bias, function)
    return found


@cache
def _native() -> Any:
    return import_module(_NATIVE) if find_spec(_NATIVE) else None
