"""Rows of weights as integers: the row-wise formats of frozen tables, with scales of float32.

    BLOCK/codes    uint8 [rows, 8 + dim * bits / 8]: scale and bias of the row, then its codes

Rows that integers cannot hold (NaN, infinity, a span beyond float32) stay exact, in a block of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megalith.checkpoint.differential.settings import Bits
from megalith.embeddings.row_block import WEIGHT, RowBlock
from megalith.ops.frozen.decode import decode_rows
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat

CODES = "codes"
_FORMATS = {8: RowFormat("int8", "float32"), 4: RowFormat("int4", "float32")}


def code_bytes(bits: int, columns: int) -> int:
    """Of a row of codes."""
    return _FORMATS[bits].row_bytes(columns)


def quantised(block: RowBlock, bits: Bits) -> Iterator[tuple[RowBlock, Bits]]:
    """A block as (block, bits): with `codes` instead of the weight, and what stays exact with 32."""
    weight: Tensor = block.parts[WEIGHT]
    if bits not in _FORMATS or not weight.is_floating_point() or not weight.shape[1]:
        yield block, 32
        return
    weight = weight.float()
    low, high = weight.double().aminmax(dim=1)
    fits = low.isfinite() & high.isfinite() & (high - low <= torch.finfo(torch.float32).max)
    both: tuple[tuple[Tensor, Bits], ...] = (fits, bits), (~fits, 32)
    for chosen, own_bits in both:
        if bool(chosen.all()):
            rows, ids, parts = weight, block.ids, dict(block.parts)
        elif bool(chosen.any()):
            rows, ids = weight[chosen], torch.as_tensor(block.ids)[chosen]
            parts = {name: part[chosen] for name, part in block.parts.items()}
        else:
            continue
        if own_bits != 32:
            del parts[WEIGHT]
            parts[CODES] = encode_rows(rows, _FORMATS[own_bits])
        yield RowBlock(ids, block.columns, parts), own_bits


class QuantisedPart:
    """Codes in a file as the weight that they stand for: `part[rows, columns]` reads and decodes."""

    def __init__(self, codes: Any, bits: int, columns: int, dtype: torch.dtype) -> None:
        """`codes` is uint8 [rows, code_bytes], or what can be sliced like it."""
        self._codes, self._form, self._columns, self._dtype = codes, _FORMATS[bits], columns, dtype

    def __getitem__(self, where: slice | tuple[slice, slice]) -> Tensor:
        rows, columns = where if isinstance(where, tuple) else (where, slice(None))
        return self._decoded(self._codes[rows], columns)

    def chosen(self, positions: Tensor, columns: slice) -> Tensor:
        """Some rows, rising, of which only these are decoded."""
        first, last = (int(positions[0]), int(positions[-1]) + 1) if len(positions) else (0, 0)
        return self._decoded(self._codes[first:last][positions - first], columns)

    def _decoded(self, codes: Tensor, columns: slice) -> Tensor:
        if not len(codes):
            return torch.empty(0, self._columns, dtype=self._dtype)[:, columns]
        return decode_rows(codes, self._form, self._columns)[:, columns].to(self._dtype)
