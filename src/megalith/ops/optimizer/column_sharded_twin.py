"""The plain-torch truth of `ColumnShardedUpdate`: same arguments, same results, one table at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.descriptors import LookupBatch, OutputGradients
from megalith.ops.optimizer.backward_twin import touched_rows
from megalith.ops.optimizer.steps import (
    NUM_ROW_NORMS,
    OptimizerStep,
    PartialStep,
    PhysicalRows,
    begin_rows_,
    finish_rows_,
)
from megalith.ops.optimizer.stochastic_rounding import RowRounding


class ColumnShardedUpdateTwin:
    """Updates of column-sharded tables in two halves, in plain torch."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        descriptors: Tensor,
        columns: Sequence[int],
        sections: Sequence[tuple[int, int, int]],
    ) -> None:
        self._tables = [PhysicalRows(*tensors) for tensors in zip(weights, first, second, strict=True)]
        self._weights, self._descriptors = weights, descriptors
        self._columns, self._sections = columns, sections
        self._steps: list[OptimizerStep] = []
        self._partial: dict[int, PartialStep] = {}

    def begin(self, steps: Tensor, batch: LookupBatch, gradients: OutputGradients) -> list[Tensor]:
        """By section: squared norms over the columns here, rows rising."""
        touched = touched_rows(self._weights, self._descriptors, batch, gradients)
        self._steps = [OptimizerStep(*settings) for settings in steps.tolist()]
        self._partial = {}
        norms = {}
        for table, rows in touched.items():
            self._partial[table], norms[table] = begin_rows_(self._tables[table], rows, self._steps[table])
        parts = []
        for table, first, last in self._sections:
            if table in touched:
                ids = touched[table].rows
                parts.append(norms[table][(ids >= first) & (ids < last)].reshape(-1))
            else:
                parts.append(torch.zeros(0))
        return parts

    def finish(self, norms: Sequence[Tensor], rounding: Tensor) -> None:
        """The step, given the same norms over all columns of the rows."""
        whole, at = torch.cat(list(norms)), 0
        for table, partial in sorted(self._partial.items()):
            step = self._steps[table]
            width = NUM_ROW_NORMS[step.optimizer]
            size, own_rounding = len(partial.rows) * width, RowRounding(*rounding[table].tolist())
            own_norms = whole[at : at + size].view(-1, width)
            finish_rows_(self._tables[table], partial, own_norms, self._columns[table], step, own_rounding)
            at += size
