"""How far apart two correct results of one program may be."""

from __future__ import annotations

from megalith.export.program import Linear, ModelProgram

FLOAT32, BFLOAT16, INT8 = 2e-5, 1e-2, 2e-2
"""Of a probability. Sums of float32 are added in any order; before a layer in few bits that may move an
activation to the next code, which is a whole step of that precision."""


def usual_tolerance(program: ModelProgram) -> float:
    """By the narrowest layer of a program."""
    found = {each.precision for each in program.operations if isinstance(each, Linear)}
    return INT8 if "int8" in found else BFLOAT16 if "bfloat16" in found else FLOAT32
