"""Rows into codes on all threads: `encode_rows`, whose truth is `encode_twin`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import PRECISIONS, RowFormat


def encode_rows(weights: Tensor, form: RowFormat, table: str = "weights", first_row: int = 0) -> Tensor:
    """Weights, float32 [rows, dim], as uint8 [rows, row_bytes].

    Where weights are refused, `table` is named and rows are counted from `first_row`.
    """
    usual = weights.dtype == torch.float32 and weights.dim() == 2 and weights.device.type == "cpu"
    if not form.is_integer or not usual or not weights.numel():
        return encode_rows_twin(weights, form, table, first_row)
    native.share_torch_threads()
    given, (rows, dim) = weights.contiguous(), weights.shape
    out = torch.empty(rows, form.row_bytes(dim), dtype=torch.uint8)
    unfit = ctypes.c_int64(-1)
    native.library().mg_frozen_encode(
        *(given.data_ptr(), rows, dim, PRECISIONS.index(form.precision), form.header_bytes),
        *(out.data_ptr(), ctypes.addressof(unfit)),
    )
    if unfit.value >= 0:
        # The twin says why.
        row = unfit.value
        encode_rows_twin(given[row : row + 1], form, table, first_row + row)
        raise AssertionError(f"row {row} does not fit in the native core alone")
    return out
