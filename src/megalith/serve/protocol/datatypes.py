"""Datatypes of tensors by the protocol's names."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from megalith.core.errors import nearest
from megalith.serve.failures import BadRequestError
from megalith.serve.protocol.errors import UnsupportedError

BYTES = "BYTES"
DATATYPES: dict[str, DTypeLike] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
ITEM_BYTES: dict[str, int] = {name: np.dtype(kind).itemsize for name, kind in DATATYPES.items()}
MAX_DIMENSIONS, MAX_ELEMENTS = 8, 1 << 40


def check_datatype(name: object, tensor: str) -> str:
    """The datatype of a tensor, if it is one that this server reads."""
    if not isinstance(name, str):
        raise BadRequestError(f"Input '{tensor}' has no 'datatype'; give it one, such as FP32.")
    if name == "BF16":
        raise UnsupportedError(f"Input '{tensor}' is BF16, which no model here takes; send FP32.")
    if name != BYTES and name not in DATATYPES:
        known = (*DATATYPES, BYTES)
        raise BadRequestError(f"Input '{tensor}' has the datatype '{name[:40]}'; {nearest(name[:40], known)}")
    return name


def check_shape(shape: object, tensor: str) -> tuple[int, ...]:
    """The shape of a tensor, if it can be one."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) > MAX_DIMENSIONS:
        raise BadRequestError(f"Input '{tensor}' has no 'shape' of up to {MAX_DIMENSIONS} numbers; send one.")
    sizes = tuple(shape)
    if not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in sizes):
        raise BadRequestError(f"The shape of input '{tensor}' is to be of whole numbers, none negative.")
    if math.prod(sizes) > MAX_ELEMENTS:
        raise BadRequestError(f"The shape of input '{tensor}' has too many elements; send fewer.")
    return sizes


def check_bytes(num_bytes: int, datatype: str, shape: tuple[int, ...], tensor: str) -> None:
    """Refuses data whose size is not that of its shape."""
    if datatype == BYTES:
        return
    expected = math.prod(shape) * ITEM_BYTES[datatype]
    if num_bytes != expected:
        raise BadRequestError(
            f"Input '{tensor}' has {num_bytes} bytes of data and {expected} by its shape "
            f"{list(shape)} of {datatype}; send as many."
        )
