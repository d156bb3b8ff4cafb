"""What a recorder writes down beside the operations of a program: steps of terms that are one there.

`passes` turns all of them into operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.export.program import Operation


@dataclass(frozen=True, slots=True)
class VectorSum:
    """The sum of a sample's vectors of `dim` columns."""

    inputs: tuple[str]
    output: str
    dim: int


@dataclass(frozen=True, slots=True)
class Subtract:
    """first - second."""

    inputs: tuple[str, str]
    output: str


AnyRecord = Operation | VectorSum | Subtract
