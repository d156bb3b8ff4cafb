"""Inputs into a request's room, and what an engine is to read there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from megalith.serve.protocol.message import InferMessage, InputTensor
from megalith.serve.request import TensorView

ALIGNMENT = 64


class Room(Protocol):
    """Memory of one request."""

    @property
    def memory(self) -> memoryview:
        """Its bytes, to be written."""


RoomKind = TypeVar("RoomKind", bound=Room)


def place_inputs(
    message: InferMessage, reserve: Callable[[int], RoomKind], room: RoomKind | None
) -> tuple[RoomKind, dict[str, TensorView]]:
    """The room with all inputs in it: `room` where they lie there already, else a new one with one copy."""
    if room is not None and all(tensor.offset is not None for tensor in message.inputs):
        return room, _views(message.inputs)
    end = 0
    offsets = []
    for tensor in message.inputs:
        offsets.append(end)
        end += -(-len(tensor.data) // ALIGNMENT) * ALIGNMENT
    made = reserve(max(end, 1))
    view = made.memory
    for tensor, offset in zip(message.inputs, offsets, strict=True):
        size = len(tensor.data)
        view[offset : offset + size] = tensor.data
        tensor.offset, tensor.data = offset, view[offset : offset + size]
    return made, _views(message.inputs)


def _views(tensors: Iterable[InputTensor]) -> dict[str, TensorView]:
    return {
        tensor.name: TensorView(tensor.offset or 0, len(tensor.data), tensor.datatype, tensor.shape)
        for tensor in tensors
    }
