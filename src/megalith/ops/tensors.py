"""Tensors on their way to the native core: what it must not be given, and where they are in memory.

Anybody may call an operator of torch's dispatcher with anything. Tensors that are only read may have gaps:
those that the core wants in one piece are copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError

STORED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of weights and outputs, in the order of csrc/embedding/lookup.h."""
FLOAT_DTYPES = (*STORED_DTYPES, torch.float64)
"""Of gradients and other vectors, which the operators turn into float32."""


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor begins, or a null pointer for none."""
    return None if tensor is None else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    """Where each tensor begins, as an array of pointers; null for none and for empty ones."""
    pointers = [None if tensor is None or not tensor.numel() else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * max(1, len(pointers)))(*pointers)


def end_address(tensor: Tensor) -> int:
    """The address behind the last element; 0 for a tensor without elements."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.untyped_storage().data_ptr()
    return begin + (int(tensor.storage_offset()) + int(last) + 1) * tensor.element_size()


def check_tensor(
    name: str, tensor: Tensor, dtypes: Sequence[torch.dtype], dim: int, *, whole: bool = False
) -> None:
    """Refuses another device, layout, type or number of dimensions; if `whole`, also gaps."""
    if tensor.device.type != "cpu":
        raise ConfigError(f"{name} is on {tensor.device}; put all tensors of an operator on one device.")
    if tensor.layout != torch.strided:
        raise ConfigError(f"{name} is {tensor.layout}; pass a dense tensor.")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ConfigError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}; pass {wanted}.")
    if tensor.dim() != dim:
        raise ConfigError(f"{name} has {tensor.dim()} dimensions; pass {dim}.")
    if whole and not tensor.is_contiguous():
        raise ConfigError(f"{name} is not contiguous; it is read where it is, so pass it in one piece.")
    if end_address(tensor) - tensor.untyped_storage().data_ptr() > tensor.untyped_storage().nbytes():
        raise ConfigError(
            f"{name} reaches beyond its storage, which was resized; pass a tensor that has memory."
        )


def check_devices(tensors: Iterable[Tensor | None]) -> None:
    """Refuses tensors on more than one device; the only check that needs no memory behind them."""
    devices = sorted({str(tensor.device) for tensor in tensors if tensor is not None})
    if len(devices) > 1:
        raise ConfigError(
            f"Tensors of one operator are on {' and '.join(devices)}; put all of them on one device."
        )


def check_no_overlap(written: Iterable[Tensor], read: Iterable[Tensor]) -> None:
    """Refuses tensors that share memory with one that is written."""
    spans = [(tensor.data_ptr(), end_address(tensor), True) for tensor in written if tensor.numel()]
    spans += [(tensor.data_ptr(), end_address(tensor), False) for tensor in read if tensor.numel()]
    written_end = any_end = 0
    for begin, end, is_written in sorted(spans):
        if begin < (any_end if is_written else written_end):
            raise ConfigError(
                "Tables share memory with each other or with the batch; pass tensors of their own."
            )
        any_end = max(any_end, end)
        if is_written:
            written_end = max(written_end, end)


def outside(numbers: Tensor, end: int) -> bool:
    """Whether any number is not in [0, end); not by torch, whose threads would wait for more work."""
    held = numbers.numpy()
    return bool(held.size and (held.min() < 0 or held.max() >= end))


def check_lookups(
    lookups: Tensor, values: Tensor, tables: int, types: Sequence[torch.dtype] = (torch.int32, torch.int64)
) -> bool:
    """Refuses (table, first value, last value) and values that a pool of rows would read wrongly.

    Returns whether the lookups have every value, one after the other.
    """
    if values.dtype not in types or values.dim() != 1 or not values.is_contiguous():
        names = " or ".join(str(each).removeprefix("torch.") for each in types)
        raise ValueError(f"values are contiguous {names} [values]")
    shaped = lookups.dtype == torch.int64 and lookups.dim() == 2 and lookups.shape[1] == 3
    if not shaped or not lookups.is_contiguous():
        raise ValueError("lookups are contiguous int64 [lookups, 3]")
    # One by one: there is one for each feature, and what a reduction of an array calls costs more.
    end, covered, is_next = len(values), 0, True
    for table, first, last in lookups.tolist():
        if not (0 <= table < tables and 0 <= first <= end and 0 <= last <= end):
            raise ValueError("a lookup names a table or values that there are not")
        is_next, covered = is_next and first == covered, last
    return is_next and covered == end
