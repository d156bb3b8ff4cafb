"""`lookup_fault`: finds what is wrong with the indices of a lookup before anything reads memory by them.

Values are feature-major: bag n = f * batch + b covers values[offsets[n] : offsets[n + 1]]. `checked_copy`
copies them in the same pass, for a lookup whose ids are needed again after the caller may have changed them.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.tensors import address

NONE, OFFSETS = -1, -2
"""What `lookup_fault` says when all is well, and when offsets do not rise from 0 to the number of values."""


class CheckedCopy(NamedTuple):
    """Indices that nobody else can change."""

    fault: int
    """As `lookup_fault` says; what the copies hold counts only if it is NONE."""
    values: Tensor
    """int32, or int64 where a table has more rows than that counts"""
    offsets: Tensor


def lookup_fault(values: Tensor, offsets: Tensor, feature_rows: Tensor) -> int:
    """NONE, OFFSETS, or the smallest position with an index outside [0, rows of its feature).

    `offsets` has features * batch + 1 entries, `feature_rows` one for each feature: -1 where any index is
    one. A plain call into the
    core: a lookup of a small batch should not wait for torch's dispatcher.
    """
    _check_kinds(values, offsets, feature_rows)
    if values.device.type != "cpu":
        return lookup_fault_twin(values, offsets, feature_rows)
    return _fault(values.contiguous(), offsets.contiguous(), feature_rows, None, None)


def checked_copy(values: Tensor, offsets: Tensor, feature_rows: Tensor, *, wide: bool) -> CheckedCopy:
    """The same with a copy; ids in eight bytes if `wide`, for rows that four cannot count, else in four."""
    _check_kinds(values, offsets, feature_rows)
    if values.device.type != "cpu":
        return checked_copy_twin(values, offsets, feature_rows, wide=wide)
    own_values = torch.empty(len(values), dtype=torch.int64 if wide else torch.int32)
    own_offsets = torch.empty(len(offsets), dtype=torch.int64)
    given = values.contiguous(), offsets.contiguous()
    return CheckedCopy(_fault(*given, feature_rows, own_values, own_offsets), own_values, own_offsets)


def _fault(
    values: Tensor,
    offsets: Tensor,
    feature_rows: Tensor,
    own_values: Tensor | None,
    own_offsets: Tensor | None,
) -> int:
    native.share_torch_threads()
    num_features, fault = len(feature_rows), ctypes.c_int64(0)
    native.library().mg_lookup_fault(
        *(values.data_ptr(), values.element_size(), len(values)),
        *(offsets.data_ptr(), (len(offsets) - 1) // num_features, feature_rows.data_ptr(), num_features),
        *(address(own_values), 0 if own_values is None else own_values.element_size()),
        *(address(own_offsets), ctypes.addressof(fault)),
    )
    return fault.value


def _check_kinds(values: Tensor, offsets: Tensor, feature_rows: Tensor) -> None:
    if values.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"indices must be int32 or int64, not {values.dtype}")
    if offsets.dtype != torch.int64:
        raise TypeError(f"offsets must be int64, not {offsets.dtype}")
    if values.dim() != 1 or offsets.dim() != 1:
        raise TypeError(f"indices and offsets have one dimension, not {values.dim()} and {offsets.dim()}")
    if values.device != offsets.device:
        raise TypeError(f"indices are on {values.device} and offsets on {offsets.device}")
    if not len(offsets) or (len(offsets) - 1) % len(feature_rows):
        raise TypeError(f"{len(offsets)} offsets are not batch * {len(feature_rows)} features and one more")


def lookup_fault_twin(values: Tensor, offsets: Tensor, feature_rows: Tensor) -> int:
    """The plain-torch truth of `lookup_fault`."""
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != len(values) or bool((offsets[1:] < offsets[:-1]).any()):
        return OFFSETS
    batch = (len(offsets) - 1) // len(feature_rows)
    sizes = offsets[batch::batch] - offsets[:-1:batch] if batch else torch.zeros_like(feature_rows)
    rows = torch.repeat_interleave(feature_rows, sizes)
    bad = (((values < 0) | (values >= rows)) & (rows >= 0)).nonzero()
    return int(bad[0, 0]) if len(bad) else NONE


def checked_copy_twin(values: Tensor, offsets: Tensor, feature_rows: Tensor, *, wide: bool) -> CheckedCopy:
    """The plain-torch truth of `checked_copy`."""
    own = values.to(torch.int64 if wide else torch.int32, copy=True), offsets.clone()
    return CheckedCopy(lookup_fault_twin(values, offsets, feature_rows), *own)
