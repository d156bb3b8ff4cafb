"""Rows into codes, in plain torch: the truth of `encode_rows`.

Codes are chosen after scale and bias were rounded, in float64. The range of an int8 row is from its
smallest to its largest weight. That of an int4 row is searched for: from there it gives up a hundredth at
one end, forty times, each time at the end where that leaves the smaller squared error, and the best of the
forty-one is taken (the greedy search of FBGEMM and Caffe2).
"""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.ops.frozen.formats import RowFormat, refuse_unfit, row_bounds, stored_scales

LANES = 16
"""Squared errors of a row are added up in as many sums, and these in a fixed tree."""
STEPS, BIN = 40, 0.01
_ROUND = 12582912.0
"""Added to a float32 below 2^22 and taken away again, it leaves the nearest whole number, ties to even."""


def encode_rows_twin(weights: Tensor, form: RowFormat, table: str = "weights", first_row: int = 0) -> Tensor:
    """Weights, float32 [rows, dim], as uint8 [rows, row_bytes].

    Where weights are refused, `table` is named and rows are counted from `first_row`.
    """
    rows = len(weights)
    if not form.is_integer:
        return _plain(weights, form, table, first_row)
    if not rows:
        return torch.empty(0, form.row_bytes(weights.shape[1]), dtype=torch.uint8)
    low, high = row_bounds(weights, table, first_row)
    if form.precision == "int4":
        low, high = searched_range(weights, low, high)
    scale, bias = stored_scales(low, high, form)
    if not bool((scale.isfinite() & bias.isfinite()).all()):
        raise DataError(f"Scales of {table} are too large for {form.scale}; use choose_format.")
    exact = (weights.double() - bias.double()[:, None]) / scale.double()[:, None]
    exact = exact.masked_fill(scale[:, None] == 0, 0.0)
    codes = exact.clamp(0, form.levels).round().to(torch.uint8)
    header = torch.stack([scale, bias], dim=1).view(torch.uint8)
    if form.precision == "int4":
        codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return torch.cat([header, codes], dim=1)


def _plain(weights: Tensor, form: RowFormat, table: str, first_row: int) -> Tensor:
    if not weights.numel():
        return torch.empty(len(weights), form.row_bytes(weights.shape[1]), dtype=torch.uint8)
    refuse_unfit(weights, *torch.aminmax(weights, dim=1), table, first_row)
    stored = weights.to(getattr(torch, form.precision))
    if not bool(stored.isfinite().all()):
        row = int((~stored.isfinite()).any(dim=1).nonzero()[0, 0]) + first_row
        raise DataError(f"Row {row} of {table} holds weights beyond float16; freeze it as float32.")
    return stored.contiguous().view(torch.uint8)


def searched_range(weights: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The range of each row that leaves the smallest squared error that the search meets, float64."""
    spread = high - low
    shares = ((weights.double() - low[:, None]) / spread[:, None]).masked_fill(spread[:, None] == 0, 0.0)
    shares = shares.float()
    left = torch.zeros(len(weights))
    right, best_left, best_right = left.clone(), left.clone(), left.clone()
    best = _loss(shares, left, right)
    for _ in range(STEPS):
        one, other = _loss(shares, left + 1, right), _loss(shares, left, right + 1)
        takes_left = one < other
        left, right = torch.where(takes_left, left + 1, left), torch.where(takes_left, right, right + 1)
        loss = torch.where(takes_left, one, other)
        better = loss < best
        best = torch.where(better, loss, best)
        best_left, best_right = torch.where(better, left, best_left), torch.where(better, right, best_right)
    bin_size = spread * BIN
    return low + best_left.double() * bin_size, high - best_right.double() * bin_size


def _loss(shares: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Squared error of each row, in shares of its range, without so many bins at either end; float32."""
    size = torch.tensor(BIN)
    first = left * size
    width = (1.0 - right * size) - first
    scale, inverse = width / 15.0, 15.0 / width
    units = shares * inverse[:, None] - (first * inverse)[:, None]
    errors = units - ((units.clamp(0.0, 15.0) + _ROUND) - _ROUND)
    squares = torch.nn.functional.pad(errors * errors, (0, -shares.shape[1] % LANES))
    lanes = torch.zeros(len(shares), LANES)
    for block in squares.split(LANES, dim=1):
        lanes = lanes + block
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0] * (scale * scale)
