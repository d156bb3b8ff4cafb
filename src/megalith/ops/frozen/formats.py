"""How a frozen row lies in memory, and which format a table needs.

A row of integers is [scale][bias][codes]. Scale and bias are float16, or float32 for tables that float16
cannot hold; codes are unsigned, one byte a column (int8) or two columns a byte, the even one in the low
half (int4). A column reads as `scale * code + bias`, in float32: the product rounded, then the sum. With
scales of float16 the product is exact. Rows of float32 and float16 are plain. No format has padding between
rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, DataError

RowPrecision = Literal["float32", "float16", "int8", "int4"]
ScaleType = Literal["float16", "float32"]
PRECISIONS: tuple[RowPrecision, ...] = get_args(RowPrecision)
"""In the order of csrc/frozen/format.h."""
_BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
_WORST_SCALES = 1.05
"""Float32 is taken where float16 would raise the squared error of a table by more than this."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How rows of a table are encoded: a precision and, for integers, the type of their scales."""

    precision: RowPrecision
    scale: ScaleType | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(f"Rows cannot be {self.precision!r}; pass one of {', '.join(PRECISIONS)}.")
        if self.is_integer != (self.scale is not None):
            raise ConfigError(
                f"Rows of {self.precision} have {'a' if self.is_integer else 'no'} type of scales; "
                f"{'pass float16 or float32' if self.is_integer else 'leave it out'}."
            )
        if self.scale not in (None, "float16", "float32"):
            raise ConfigError(f"Scales cannot be {self.scale!r}; pass float16 or float32.")

    @property
    def is_integer(self) -> bool:
        """Whether rows are codes with a scale and a bias."""
        return self.precision in ("int8", "int4")

    @property
    def bits(self) -> int:
        """Of one column."""
        return _BITS[self.precision]

    @property
    def levels(self) -> int:
        """The highest code."""
        return (1 << self.bits) - 1

    @property
    def header_bytes(self) -> int:
        """Of scale and bias."""
        return 0 if self.scale is None else 4 if self.scale == "float16" else 8

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of scale and bias, as torch has it."""
        return torch.float16 if self.scale == "float16" else torch.float32

    def row_bytes(self, dim: int) -> int:
        """Of a row of `dim` columns."""
        return self.header_bytes + (dim * self.bits + 7) // 8


def choose_format(
    weights: Tensor | Iterable[Tensor], precision: RowPrecision, table: str = "weights"
) -> RowFormat:
    """The format of a table at this precision, which may come in blocks of rows, float32 [rows, dim].

    Scales are float16 unless one of them would be infinite, or all together would be coarser than float32
    allows: rows far from zero but close together, or smaller than float16 resolves. `table` is named where
    weights are refused.
    """
    if precision not in ("int8", "int4"):
        return RowFormat(precision)
    short, long = RowFormat(precision, "float16"), RowFormat(precision, "float32")
    errors = torch.zeros(2, dtype=torch.float64)
    first_row = 0
    for block in [weights] if isinstance(weights, Tensor) else weights:
        if not block.numel():
            continue
        low, high = row_bounds(block, table, first_row)
        first_row += len(block)
        for number, form in enumerate((short, long)):
            scale, bias = stored_scales(low, high, form)
            held = scale.double()
            if number == 0 and not (scale.isfinite().all() and bias.isfinite().all()):
                return long
            errors[number] += (held * held).sum()
    return short if errors[0] <= _WORST_SCALES * errors[1] else long


def row_bounds(weights: Tensor, table: str, first_row: int = 0) -> tuple[Tensor, Tensor]:
    """Smallest and largest weight of each row, float64; refuses what no row of integers can hold.

    `first_row` is the number of the first one, of which messages count.
    """
    if weights.dim() != 2 or weights.dtype != torch.float32 or not weights.shape[1]:
        raise ConfigError("Rows are encoded from float32 [rows, dim], with a column or more.")
    low, high = torch.aminmax(weights, dim=1)
    refuse_unfit(weights, low, high, table, first_row)
    # A sum with zero has no negative zero.
    low64, high64 = low.double() + 0.0, high.double() + 0.0
    if bool((high64 - low64 > torch.finfo(torch.float32).max).any()):
        row = int((high64 - low64).argmax()) + first_row
        raise DataError(f"Row {row} of {table} spans more than float32 counts; freeze it as float32.")
    return low64, high64


def refuse_unfit(weights: Tensor, low: Tensor, high: Tensor, table: str, first_row: int) -> None:
    """Refuses NaN and infinity, given the bounds of each row, which have them where the row has."""
    bad = ~(low.isfinite() & high.isfinite())
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        column = int((~weights[row].isfinite()).nonzero()[0, 0])
        raise DataError(
            f"Row {row + first_row} of {table} holds {float(weights[row, column])} in column {column}; "
            "a table with such weights cannot be frozen, go back to a checkpoint before they arose."
        )


def stored_scales(low: Tensor, high: Tensor, form: RowFormat) -> tuple[Tensor, Tensor]:
    """Scale and bias of rows that reach from `low` to `high` (float64), as they are stored.

    The bias is rounded down and the scale up, so that no weight is out of reach and errors are at most half
    a scale.
    """
    bias = _next_where(low.float().to(form.scale_dtype), low, up=False)
    wanted = (high - bias.double()) / form.levels
    return _next_where(wanted.float().to(form.scale_dtype), wanted, up=True), bias


def _next_where(stored: Tensor, wanted: Tensor, *, up: bool) -> Tensor:
    """`stored`, or the number beside it that is on the right side of `wanted`."""
    integer = torch.int16 if stored.dtype == torch.float16 else torch.int32
    step = 1 if up else -1
    while True:
        wrong = stored.double() < wanted if up else stored.double() > wanted
        if not bool(wrong.any()):
            return stored
        bits = stored.view(integer)
        # Away from zero is one more in bits, towards it one less, from it the smallest number.
        smallest = torch.full_like(bits, 1 if up else 1 + torch.iinfo(integer).min)
        moved = torch.where(stored == 0, smallest, torch.where(stored > 0, bits + step, bits - step))
        stored = torch.where(wrong, moved, bits).view(stored.dtype)
