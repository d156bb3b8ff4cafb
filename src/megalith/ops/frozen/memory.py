"""Rows in memory of our own, on huge pages: a row at random then costs far fewer address translations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from megalith.ops import native

_LINE, _PIECE_BYTES = 64, 1 << 22


def resident(rows: Tensor, between: Callable[[], None] = lambda: None) -> Tensor:
    """A copy of a tensor, on huge pages where the system has them: for rows mapped from a file. `between` is
    called after every piece of it."""
    size = rows.numel() * rows.element_size()
    memory = torch.empty(size + _LINE, dtype=torch.uint8)
    begin = -memory.data_ptr() % _LINE
    own = memory[begin : begin + size]
    native.library().mg_advise_huge_pages(own.data_ptr(), size)
    given = rows.contiguous().view(torch.uint8).flatten()
    for first in range(0, size, _PIECE_BYTES):
        own[first : first + _PIECE_BYTES].copy_(given[first : first + _PIECE_BYTES])
        between()
    return own.view(rows.dtype).view(rows.shape)
