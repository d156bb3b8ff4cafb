"""The values that rows begin with: a function of (seed, table, id, column), of nothing physical.

Any process computes any row at any time: a row that was never trained needs no storage. The plain-torch twin
repeats the arithmetic of csrc/stores/start_values.h. Neither may ever change, or runs would not resume.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.ops import native

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class StartValues:
    """How the rows of a table, or of a rectangle of one, begin: evenly in [-scale, scale)."""

    seed: int
    table: str
    dim: int
    """Columns of the rectangle."""
    scale: float
    dtype: torch.dtype = torch.float32
    first_row: int = 0
    first_column: int = 0

    @property
    def table_seed(self) -> int:
        """Of the seed and the table's name, 64 bits with a sign."""
        digest = hashlib.sha256(f"start:{self.seed}:{self.table}".encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def fields(self, rows: int, padding: int = -1) -> list[int]:
        """As the native core reads a table: rows and padding first."""
        (scale_bits,) = struct.unpack("<I", struct.pack("<f", self.scale))
        place = self.first_row, self.first_column, self.dim
        return [rows, padding, self.table_seed, *place, DTYPES.index(self.dtype), scale_bits]


def start_values_(out: Tensor, start: StartValues, first: int = 0) -> Tensor:
    """Fills [rows, dim] with the start values of rows from `first` on."""
    if out.dtype != start.dtype or out.dim() != 2 or out.shape[1] != start.dim or not out.is_contiguous():
        raise ValueError(
            f"start values of {start.dim} columns do not fit into {tuple(out.shape)} {out.dtype}"
        )
    native.share_torch_threads()
    fields = torch.tensor(start.fields(len(out)))
    native.library().mg_start_values(fields.data_ptr(), first, len(out), out.data_ptr())
    return out


def start_values_twin(start: StartValues, ids: Tensor) -> Tensor:
    """The same for any ids, int64 [rows], in plain torch."""
    rows = _mixed(start.table_seed + (ids + start.first_row) * _signed(0x9E3779B97F4A7C15))
    columns = torch.arange(start.first_column, start.first_column + start.dim)
    pairs = _mixed(rows[:, None] + (columns // 2 + 1) * _signed(0xD1342543DE82EF95))
    halves = torch.where(columns % 2 == 1, pairs >> 32, pairs) & 0xFFFFFFFF
    return (((halves >> 8).float() * 2.0**-23 - 1.0) * torch.tensor(start.scale)).to(start.dtype)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, without copies of the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
