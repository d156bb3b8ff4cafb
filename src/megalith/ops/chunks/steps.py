"""What an update of chunked rows needs beside that of whole rows: how utilities follow gradients."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class ChunkStep(NamedTuple):
    """Settings of one table for one step; as csrc/chunks/kernels.h has them.

    The utility of a live chunk grows by utility_weight * accesses * the norm of its gradient, the growth
    utility of its row by the norms of all chunks that do not live. Weights that grow by 1 / gamma a step let
    old gradients fade without touching them (`ChunkedRows.scale_utilities` brings both down again).
    """

    utility_weight: float = 0.0
    """0: utilities stay."""
    counts_accesses: bool = False
    """Whether norms are multiplied with how often the batch has the row; otherwise with 1."""
    absent_norms: Tensor | None = None
    """float32, one for each id that `resolve` listed as absent: receives accesses * norms of all its chunks,
    unweighted."""
    sums: Tensor | None = None
    """int64 [2], added to where utilities follow: over the touched rows that are there, accesses * norms of
    all chunks * `norm_scale`, and these norms * the row's utilities before the step * `product_scale`. Each
    row's number is rounded to a whole one, at most 2 ** 40, so the order of rows does not matter."""
    norm_scale: float = 1.0
    product_scale: float = 1.0
    rates: Tensor | None = None
    """float32, by live chunks of a row, from 0 to all: multiply its learning rate; None is 1."""
    unscored: int = 0
    """The slot of a row whose utilities stay, and that `sums` leave out; 0 is none."""


_PACKED = struct.Struct("<qfiqffqq")
"""As csrc/chunks/kernels.h has a step."""


def packed_chunk_steps(steps: Sequence[ChunkStep]) -> bytes:
    """The steps of all tables for the native core; the tensors of `steps` must live as long."""
    # Once a step, between kernels that leave nothing in the caches: few calls, and none twice.
    rows, before, row = [], None, b""
    norms, norms_address = None, 0
    for step in steps:
        if step is not before:
            before = step
            if step.absent_norms is not norms:
                norms = step.absent_norms
                norms_address = 0 if norms is None else _address(norms, "absent_norms")
            row = _PACKED.pack(
                *(norms_address, step.utility_weight, step.counts_accesses),
                0 if step.sums is None else _address_of_sums(step.sums),
                *(step.norm_scale, step.product_scale),
                0 if step.rates is None else _address(step.rates, "rates"),
                step.unscored,
            )
        rows.append(row)
    return b"".join(rows)


def _address(numbers: Tensor, name: str) -> int:
    if numbers.dtype != torch.float32 or not numbers.is_contiguous():
        raise ValueError(f"{name} are contiguous float32")
    return numbers.data_ptr() if numbers.numel() else 0


def _address_of_sums(sums: Tensor) -> int:
    if sums.dtype != torch.int64 or sums.shape != (2,) or not sums.is_contiguous():
        raise ValueError("sums are contiguous int64 [2]")
    return sums.data_ptr()
