"""Codes back into weights, in plain torch: what every reader of frozen rows must see."""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.frozen.formats import RowFormat


def decode_rows(rows: Tensor, form: RowFormat, dim: int) -> Tensor:
    """Rows, uint8 [rows, row_bytes], as float32 [rows, dim]."""
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != form.row_bytes(dim):
        raise ConfigError(
            f"Rows of {dim} columns as {form.precision} are uint8 [rows, {form.row_bytes(dim)}], not "
            f"{str(rows.dtype).removeprefix('torch.')} {list(rows.shape)}."
        )
    if not form.is_integer:
        return _read(rows, getattr(torch, form.precision)).view(len(rows), dim)
    header = _read(rows[:, : form.header_bytes], form.scale_dtype).view(len(rows), 2)
    codes = rows[:, form.header_bytes :]
    # In the memory of the answer: there are gigabytes of rows where a checkpoint is restored.
    if form.precision == "int4":
        pairs = torch.empty(*codes.shape, 2)
        pairs[:, :, 0] = codes & 15
        pairs[:, :, 1] = codes >> 4
        weights = pairs.flatten(1)[:, :dim].contiguous()
    else:
        weights = codes.float()
    return weights.mul_(header[:, :1]).add_(header[:, 1:])


def _read(held: Tensor, dtype: torch.dtype) -> Tensor:
    # A copy: rows may begin at any byte.
    return held.flatten().clone().view(dtype).float()
