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
    utility of its row by that of all columns that do not live. Weights that grow by 1 / gamma a step let old
    gradients fade without touching them (`ChunkedRows.scale_utilities` brings both down again).
    """

    utility_weight: float = 0.0
    """0: utilities stay."""
    counts_accesses: bool = False
    """Whether norms are multiplied with how often the batch has the row; otherwise with 1."""
    absent_norms: Tensor | None = None
    """float32, one for each id that `resolve` listed as absent: receives accesses * norm, unweighted."""


def chunk_steps_tensor(steps: Sequence[ChunkStep]) -> Tensor:
    """int64 [tables, 2] for the native core; the tensors of `steps` must live as long."""
    rows = []
    for step in steps:
        norms = step.absent_norms
        if norms is not None and (norms.dtype != torch.float32 or not norms.is_contiguous()):
            raise ValueError("absent_norms are contiguous float32")
        pointer = 0 if norms is None or not norms.numel() else norms.data_ptr()
        (word,) = struct.unpack("<q", struct.pack("<fi", step.utility_weight, int(step.counts_accesses)))
        rows.append([pointer, word])
    return torch.tensor(rows, dtype=torch.int64)
