"""Where the values of a dense program lie while it runs.

What makes the part of a concatenation writes it straight into its place there, columns of a value are a view
of it, and a buffer whose values are no longer read is used again: the samples of a block stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from megalith.ops.dense.operations import DenseDescription

_LINE = 16
"""Floats of a cache line."""


class ValuePlace(NamedTuple):
    """A value as columns of a buffer; input i of a program is buffer -1 - i."""

    buffer: int
    column: int
    columns: int


class BufferPlace(NamedTuple):
    """Floats of a sample in the arena: where its buffer begins, and how far samples are apart."""

    offset: int
    stride: int


@dataclass(frozen=True)
class DenseLayout:
    """Places of all values, by name, and of buffers."""

    values: dict[str, ValuePlace]
    buffers: tuple[BufferPlace, ...]

    @property
    def floats(self) -> int:
        """Of a sample, in all buffers."""
        return max((one.offset + one.stride for one in self.buffers), default=0)


def lay_out(description: DenseDescription) -> DenseLayout:
    """Places of a program's values."""
    parents = _parents(description)
    values: dict[str, ValuePlace] = {
        name: ValuePlace(-1 - number, 0, columns)
        for number, (name, columns) in enumerate(description.inputs.items())
    }
    roots = [
        one.output for one in description.operations if one.output not in parents and one.kind != "columns"
    ]
    numbers = {name: number for number, name in enumerate(roots)}

    def placed(name: str) -> ValuePlace:
        if name not in values:
            column, root = 0, name
            while root in parents:
                root, offset = parents[root]
                column += offset
            values[name] = ValuePlace(numbers[root], column, description.columns[name])
        return values[name]

    for operation in description.operations:
        if operation.kind == "columns":
            buffer, column, _ = placed(operation.inputs[0])
            length = operation.last - operation.first
            values[operation.output] = ValuePlace(buffer, column + operation.first, length)
        else:
            placed(operation.output)
    return DenseLayout(values, _allocate(description, values, roots))


def _parents(description: DenseDescription) -> dict[str, tuple[str, int]]:
    """The concatenation that a value is made in, and its first column there; outer ones come first."""
    made = {one.output for one in description.operations if one.kind != "columns"}
    parents: dict[str, tuple[str, int]] = {}
    for operation in reversed(description.operations):
        if operation.kind != "concat":
            continue
        column = 0
        for name in operation.inputs:
            if name in made and name not in parents:
                parents[name] = (operation.output, column)
            column += description.columns[name]
    return parents


def _allocate(
    description: DenseDescription, values: dict[str, ValuePlace], roots: list[str]
) -> tuple[BufferPlace, ...]:
    """Buffers side by side, each in the first gap among those that live at the same time."""
    end = len(description.operations)
    lives: dict[int, tuple[int, int]] = {}

    def extend(name: str, position: int) -> None:
        buffer = values[name].buffer
        first, last = lives.get(buffer, (position, position))
        lives[buffer] = (min(first, position), max(last, position))

    for position, operation in enumerate(description.operations):
        for name in (*operation.inputs, operation.output):
            extend(name, position)
    for output in description.outputs:
        extend(output.value, end)
    placed: list[tuple[int, BufferPlace]] = []
    for number, name in enumerate(roots):
        stride = _stride(description.columns[name])
        first, last = lives[number]
        offset = 0
        for other, place in sorted(placed, key=lambda one: one[1].offset):
            begin, finish = lives[other]
            if begin <= last and first <= finish and place.offset < offset + stride:
                offset = max(offset, place.offset + place.stride)
        placed.append((number, BufferPlace(offset, stride)))
    return tuple(place for _, place in sorted(placed))


def _stride(columns: int) -> int:
    """Whole cache lines and an odd number of them: samples apart by a power of two would share few sets."""
    return (max(1, -(-columns // _LINE)) | 1) * _LINE
