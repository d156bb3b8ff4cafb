"""Frozen rows that keep a prefix of their columns: those of adaptive tables.

A row has a whole number of chunks, `chunk` columns each, from the first column on; the rest reads as exact
zeros. A row without chunks takes no byte. Rows lie one after the other; `starts` says where each begins, in
units of `unit` bytes (what scale and bias and a chunk are both a multiple of), so that 32 bits reach far. A
last chunk that `dim` cuts short is filled up to a unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError
from megalith.ops.frozen.decode import decode_rows
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.formats import RowFormat

_MAX_START = 2**32 - 1
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class PrefixFormat:
    """How rows of unequal length lie in memory."""

    form: RowFormat
    dim: int
    chunk: int

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= self.dim:
            raise ConfigError(f"Chunks of {self.chunk} columns do not fit rows of {self.dim}.")
        if self.chunk * self.form.bits % 8 and self.chunk < self.dim:
            raise ConfigError(f"Chunks of {self.chunk} columns end within a byte as {self.form.precision}.")

    @property
    def num_chunks(self) -> int:
        """Of a whole row."""
        return -(-self.dim // self.chunk)

    @property
    def chunk_bytes(self) -> int:
        """Of the codes of one chunk."""
        return (self.chunk * self.form.bits + 7) // 8

    @property
    def unit(self) -> int:
        """Bytes that starts count in."""
        return gcd(self.form.header_bytes, self.chunk_bytes)

    def width(self, chunks: int) -> int:
        """Columns of so many chunks."""
        return min(chunks * self.chunk, self.dim)

    def units(self, chunks: int) -> int:
        """What a row of so many chunks takes."""
        return -(-self.form.row_bytes(self.width(chunks)) // self.unit) if chunks else 0


def encode_prefix_rows(
    weights: Tensor,
    chunks: Tensor,
    form: PrefixFormat,
    table: str = "weights",
    encode: Callable[[Tensor, RowFormat, str], Tensor] = encode_rows,
) -> tuple[Tensor, Tensor]:
    """The first `chunks` chunks of each row: (uint8 [bytes], starts as int64 [rows + 1], in units).

    `chunks` are integers [rows]; columns behind them are not looked at. Blocks of a table may be encoded
    one by one and put together: bytes one after the other, starts with the last start of the block before
    added.
    """
    if chunks.shape != (len(weights),) or chunks.dtype.is_floating_point:
        raise ConfigError(f"Pass a whole number of chunks for each of {len(weights)} rows.")
    held = chunks.long()
    if len(held) and not 0 <= int(held.min()) <= int(held.max()) <= form.num_chunks:
        raise DataError(f"A row of {table} has chunks below 0 or above {form.num_chunks}.")
    units = torch.tensor([form.units(count) for count in range(form.num_chunks + 1)])
    starts = torch.cat([held.new_zeros(1), units[held].cumsum(0)])
    out = torch.zeros(int(starts[-1]) * form.unit, dtype=torch.uint8)
    for count in range(1, form.num_chunks + 1):
        for numbers in (held == count).nonzero().flatten().split(_BLOCK):
            rows = encode(weights[numbers, : form.width(count)].contiguous(), form.form, table)
            places = (starts[numbers] * form.unit)[:, None] + torch.arange(rows.shape[1])
            out[places] = rows
    return out, starts


def stored_starts(starts: Tensor, table: str = "weights") -> Tensor:
    """Starts as they are stored, uint32."""
    if int(starts[-1]) > _MAX_START:
        raise DataError(f"The rows of {table} take more than {_MAX_START:,} units; use larger chunks.")
    return starts.to(torch.uint32)


def decode_prefix_rows(
    data: Tensor, starts: Tensor, form: PrefixFormat, rows: Tensor | None = None
) -> Tensor:
    """Some rows, or all, as float32 [rows, dim]; what is not stored is zero."""
    bounds = starts.long()
    numbers = torch.arange(len(bounds) - 1) if rows is None else rows.long()
    sizes = bounds[numbers + 1] - bounds[numbers]
    out = torch.zeros(len(numbers), form.dim)
    for count in range(1, form.num_chunks + 1):
        own = (sizes == form.units(count)).nonzero().flatten()
        if not len(own):
            continue
        width = form.width(count)
        columns = torch.arange(form.form.row_bytes(width))
        held = data[(bounds[numbers[own]] * form.unit)[:, None] + columns]
        out[own, :width] = decode_rows(held, form.form, width)
    return out
