"""Rows in memory of our own, on huge pages: a row at random then costs far fewer address translations."""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.ops import native

_LINE = 64


def resident(rows: Tensor) -> Tensor:
    """A copy of a tensor, on huge pages where the system has them: for rows mapped from a file."""
    size = rows.numel() * rows.element_size()
    memory = torch.empty(size + _LINE, dtype=torch.uint8)
    begin = -memory.data_ptr() % _LINE
    own = memory[begin : begin + size]
    native.library().mg_advise_huge_pages(own.data_ptr(), size)
    return own.copy_(rows.contiguous().view(torch.uint8).flatten()).view(rows.dtype).view(rows.shape)
