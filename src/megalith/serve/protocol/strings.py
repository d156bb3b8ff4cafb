"""Tensors of strings (BYTES): each element is preceded by its length in 4 bytes, little-endian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megalith.serve.failures import BadRequestError


def join_strings(values: Sequence[Any], elements: int, name: str) -> memoryview:
    """Strings as one tensor's bytes."""
    if len(values) != elements:
        raise BadRequestError(
            f"Input '{name}' has {len(values)} strings in 'data' and {elements} by its shape; send as many."
        )
    parts = []
    for value in values:
        if not isinstance(value, (str, bytes)):
            raise BadRequestError(f"'data' of input '{name}' holds what is no string; send strings.")
        encoded = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        parts += [len(encoded).to_bytes(4, "little"), encoded]
    return memoryview(b"".join(parts))


def split_strings(data: memoryview, elements: int, name: str) -> list[bytes]:
    """The strings of one tensor's bytes."""
    found: list[bytes] = []
    position, end = 0, len(data)
    while position < end:
        if position + 4 > end:
            raise BadRequestError(f"Input '{name}' ends within the length of a string; send all of it.")
        size = int.from_bytes(data[position : position + 4], "little")
        position += 4
        if position + size > end:
            raise BadRequestError(f"Input '{name}' ends within a string of {size} bytes; send all of it.")
        if len(found) == elements:
            break
        found.append(bytes(data[position : position + size]))
        position += size
    if len(found) != elements or position != end:
        raise BadRequestError(
            f"Input '{name}' does not hold the {elements} strings of its shape; send as many."
        )
    return found
