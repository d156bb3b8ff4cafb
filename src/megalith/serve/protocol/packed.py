"""Raw binary: a request without a word of JSON (`Inference-Header-Content-Length: 0`).

Four numbers come first, int32 and little-endian: samples, bytes of an id (4 or 8), 1 if the ids of the user's
features are sent once or else 0, and 0. Then, without gaps: `dense` float32 [samples, num_dense], `lengths`
int32 [features, samples], `user_lengths` int32 [user features, 1] if sent, `values`, `user_values` if sent.
How many ids there are follows from the lengths.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.message import InferMessage, InputTensor

HEADER = struct.Struct("<4i")
_MAX_SAMPLES = 1 << 24


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """What a model's packed requests hold."""

    num_dense: int
    num_features: int
    num_user_features: int


def read_packed(body: memoryview, layout: PackedLayout, offset: int | None) -> InferMessage:
    """The request of a packed body, which lies at `offset` of a room."""
    if len(body) < HEADER.size:
        raise BadRequestError(f"A raw binary body has at least {HEADER.size} bytes; send its four numbers.")
    samples, id_bytes, apart, zero = HEADER.unpack_from(body)
    if not 0 <= samples <= _MAX_SAMPLES or id_bytes not in (4, 8) or apart not in (0, 1) or zero:
        raise BadRequestError(
            "A raw binary body begins with samples, bytes of an id (4 or 8), 1 or 0 for user features sent "
            "once, and 0, all int32; send these."
        )
    if apart and not layout.num_user_features:
        raise BadRequestError("The model has no features of the user; send 0 as the third number.")
    cursor = _Cursor(body, offset)
    features = layout.num_features - (layout.num_user_features if apart else 0)
    message = InferMessage(binary_output=True)
    if layout.num_dense:
        message.inputs.append(cursor.take("dense", "FP32", (samples, layout.num_dense), 4))
    if not layout.num_features:
        return cursor.end(message)
    lengths = [cursor.take("lengths", "INT32", (features, samples), 4)]
    if apart:
        lengths.append(cursor.take("user_lengths", "INT32", (layout.num_user_features, 1), 4))
    message.inputs += lengths
    datatype = "INT32" if id_bytes == 4 else "INT64"
    for tensor, name in zip(lengths, ("values", "user_values"), strict=False):
        count = int(np.frombuffer(tensor.data, "<i4").sum(dtype=np.int64))
        if count < 0:
            raise BadRequestError(f"'{tensor.name}' adds up to {count} ids; send numbers from 0.")
        message.inputs.append(cursor.take(name, datatype, (count,), id_bytes))
    return cursor.end(message)


class _Cursor:
    """Takes tensors off the body, one after the other."""

    def __init__(self, body: memoryview, offset: int | None) -> None:
        self._body, self._offset, self._position = body, offset, HEADER.size

    def take(self, name: str, datatype: str, shape: tuple[int, ...], item_bytes: int) -> InputTensor:
        size = item_bytes
        for dimension in shape:
            size *= dimension
        end = self._position + size
        if end > len(self._body):
            raise BadRequestError(
                f"The body ends within '{name}': it has {len(self._body)} bytes and needs {end}; send all."
            )
        offset = None if self._offset is None else self._offset + self._position
        tensor = InputTensor(name, datatype, shape, self._body[self._position : end], offset)
        self._position = end
        return tensor

    def end(self, message: InferMessage) -> InferMessage:
        left = len(self._body) - self._position
        if left:
            raise BadRequestError(f"The body has {left} bytes behind its last tensor; send none.")
        return message
