"""Rows that begin anywhere in tables: start values by raw id, and optimizer state of zeros.

An id may be any 64-bit value: its bits are what start values are a function of, a negative id being the
number 2 ** 64 above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.optimizer.steps import PhysicalRows
from megalith.ops.stores.start_values import StartValues, start_values_twin


class BegunRows(NamedTuple):
    """Rows that begin, int64 each."""

    tables: Tensor
    slots: Tensor
    ids: Tensor


class StartRows:
    """Where the rows of some tables lie and how they begin, as the native core is told of it once.

    The tensors must not be replaced or resized.
    """

    def __init__(self, rows: Sequence[PhysicalRows], starts: Sequence[StartValues]) -> None:
        for own, start in zip(rows, starts, strict=True):
            if own.weight.shape[1] != start.dim or own.weight.dtype != start.dtype:
                raise ValueError(f"start values of {start.dim} columns do not fit into {own.weight.shape}")
        self.rows, self.starts = tuple(rows), tuple(starts)
        self.fields = torch.tensor([start.fields(0) for start in starts]).view(len(rows), -1)
        self.memory = torch.tensor(
            [
                [
                    *(own.weight.data_ptr(), own.first.data_ptr(), own.second.data_ptr()),
                    *(state.shape[1] if state.dim() == 2 else int(state.numel() > 0) for state in own[1:3]),
                ]
                for own in rows
            ]
        ).view(len(rows), 5)


def start_rows_(tables: StartRows, begun: BegunRows) -> None:
    """Writes start values into rows and zeros into their optimizer state, in the native core."""
    numbers, slots, ids = (each.contiguous() for each in begun)
    native.share_torch_threads()
    native.library().mg_start_rows(
        *(tables.fields.data_ptr(), tables.memory.data_ptr()),
        *(numbers.data_ptr(), slots.data_ptr(), ids.data_ptr(), len(ids)),
    )


def start_rows_twin(tables: StartRows, begun: BegunRows) -> None:
    """The plain-torch truth of `start_rows_`."""
    for number, (own, start) in enumerate(zip(tables.rows, tables.starts, strict=True)):
        here = begun.tables == number
        slots = begun.slots[here]
        own.weight[slots] = start_values_twin(start, begun.ids[here])
        for state in own[1:3]:
            if state.numel():
                state[slots] = 0.0
