"""Rows that take every step of their optimizer, whether a batch touches them or not.

A row that no batch touched takes the steps it missed when it is next needed, one after the other with a
gradient of zero: the same bits as if it had taken each in its time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops import native
from megalith.ops.optimizer.row_gradients import RowGradients
from megalith.ops.optimizer.steps import OptimizerStep, PhysicalRows, update_rows_
from megalith.ops.optimizer.stochastic_rounding import RowRounding
from megalith.ops.tensors import STORED_DTYPES, address


class StepHistory(NamedTuple):
    """The settings of a table's steps after number `base`, up to now."""

    steps: Tensor
    """float32 [steps, fields of OptimizerStep]"""
    rounding: Tensor
    """int64 [steps, fields of RowRounding]"""
    base: int = 0

    @property
    def now(self) -> int:
        """The number of the last step."""
        return self.base + len(self.steps)


def catch_up_rows_(
    table: PhysicalRows, last: Tensor, history: StepHistory, ids: Tensor | None = None, padding: int = -1
) -> None:
    """Brings rows `ids`, which may repeat, up to now; None is all. `last`, int32, has each row's last step.

    `padding` is a row that takes no step.
    """
    native.share_torch_threads()
    weight, first, second, _ = table
    steps, rounding = history.steps.contiguous(), history.rounding.contiguous()
    given = None if ids is None else ids.contiguous()
    native.library().mg_catch_up_rows(
        *(
            weight.shape[1],
            STORED_DTYPES.index(weight.dtype),
            weight.data_ptr(),
            address(first),
            address(second),
        ),
        *(last.data_ptr(), address(given), 8 if given is None else given.element_size()),
        *(len(weight) if given is None else len(given), padding, steps.data_ptr(), rounding.data_ptr()),
        *(history.base, history.now),
    )


def catch_up_rows_twin(
    table: PhysicalRows, last: Tensor, history: StepHistory, ids: Tensor | None = None, padding: int = -1
) -> None:
    """The same in plain torch, step by step."""
    wanted = torch.arange(len(table.weight)) if ids is None else ids.long().unique()
    wanted = wanted[wanted != padding]
    zeros = torch.zeros(len(wanted), table.weight.shape[1])
    for number, (step, rounding) in enumerate(zip(history.steps, history.rounding, strict=True)):
        behind = last[wanted] <= history.base + number
        if not behind.any():
            continue
        touched = RowGradients(wanted[behind], zeros[behind])
        update_rows_(table, touched, OptimizerStep(*step.tolist()), RowRounding(*rounding.tolist()))
    last[wanted] = history.now
