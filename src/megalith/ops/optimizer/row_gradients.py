"""The gradients of a batch by row, in plain torch.

Duplicates are summed in one fixed order (stable sort by row, then position), so results do not depend on
threads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowGradients(NamedTuple):
    """The gradient of each touched row, once."""

    rows: Tensor
    """int64 [touched], rising"""
    gradients: Tensor
    """float32 [touched, dim]"""


def reduce_duplicates(values: Tensor, gradients: Tensor) -> RowGradients:
    """Sums the gradients of equal values in the order in which they occur."""
    ordered, order = torch.sort(values.long(), stable=True)
    rows, counts = torch.unique_consecutive(ordered, return_counts=True)
    if len(rows) == len(values):
        return RowGradients(rows, gradients[order])
    summed = torch.segment_reduce(gradients[order], "sum", lengths=counts, axis=0, initial=0, unsafe=True)
    return RowGradients(rows, summed)
