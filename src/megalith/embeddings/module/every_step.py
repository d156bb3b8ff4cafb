"""Tables all of whose rows take every step, though a step costs what it touches.

    optimizer=Adam(lr=1e-3, weight_decay=1e-5, rows="all")     # as torch.optim.Adam over whole tables

Rows that no batch touched take the steps they missed when they are next read, trained or saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.embeddings.stores.base import StoredTable
from megalith.ops.embedding.descriptors import LookupBatch, LookupDescriptor, OutputGradients
from megalith.ops.optimizer.catch_up import StepHistory, catch_up_rows_
from megalith.ops.optimizer.steps import OptimizerStep, PhysicalRows
from megalith.ops.optimizer.stochastic_rounding import RowRounding

_MOST_STEPS = 1 << 16
"""After so many all rows are brought up to now, and the settings of older steps are forgotten."""

_TABLE_AND_FEATURE = [LookupDescriptor._fields.index(name) for name in ("table", "feature")]


class EveryStepRows:
    """The tables of a collection all of whose rows take every step, and how far each row is."""

    def __init__(
        self, tables: Sequence[StoredTable], rows: Sequence[PhysicalRows], is_whole: Callable[[int], bool]
    ) -> None:
        """Of all tables, takes those whose optimizer asks for it, and refuses one that `is_whole` denies."""
        self._positions = [n for n, table in enumerate(tables) if table.optimizer.rows == "all"]
        for position in self._positions:
            if not is_whole(position):
                refuse_all_rows(tables[position].spec.name, "are not all in memory")
        positions = self._positions
        self._rows = [rows[position] for position in positions]
        paddings = (tables[position].spec.padding_index for position in positions)
        self._paddings = [-1 if padding is None else padding for padding in paddings]
        self._last = [torch.zeros(len(each.weight), dtype=torch.int32) for each in self._rows]
        self._base = self._now = 0
        self._steps = torch.empty(len(positions), 64, len(OptimizerStep._fields))
        self._rounding = torch.empty(len(positions), 64, len(RowRounding._fields), dtype=torch.int64)

    def catch_up(self, step: int, descriptors: Tensor, batch: LookupBatch) -> None:
        """Brings the rows that a batch looks up to `step`, the last one."""
        self._begin_at(step)
        for own, ids in self._looked_up(descriptors, batch):
            catch_up_rows_(self._rows[own], self._last[own], self._history(own), ids, self._paddings[own])

    def settle(self, step: int) -> None:
        """Brings all rows to `step`, the last one, and forgets how they got there."""
        self._begin_at(step)
        for own, rows in enumerate(self._rows):
            catch_up_rows_(rows, self._last[own], self._history(own), None, self._paddings[own])
        self._base = self._now

    def took_step(
        self,
        steps: Callable[[], Tensor],
        rounding: Callable[[], Tensor],
        descriptors: Tensor,
        batch: LookupBatch,
        gradients: OutputGradients,
    ) -> None:
        """Remembers a step that rows of a batch took with `gradients`; settings are those of all tables."""
        if not self._positions:
            return
        number = self._now - self._base
        if number == self._steps.shape[1]:
            self._steps = torch.cat([self._steps, torch.empty_like(self._steps)], dim=1)
            self._rounding = torch.cat([self._rounding, torch.empty_like(self._rounding)], dim=1)
        self._steps[:, number] = steps()[self._positions]
        self._rounding[:, number] = rounding()[self._positions]
        self._now += 1
        for own, ids in self._looked_up(gradients.touching(descriptors), batch):
            self._last[own][ids.long()] = self._now
        if number + 1 == _MOST_STEPS:
            self.settle(self._now)

    def _begin_at(self, step: int) -> None:
        """Where another step comes than the last one here, rows were loaded, and are up to it."""
        if step != self._now and self._positions:
            for last in self._last:
                last.fill_(step)
            self._base = self._now = step

    def _history(self, own: int) -> StepHistory:
        taken = self._now - self._base
        return StepHistory(self._steps[own, :taken], self._rounding[own, :taken], self._base)

    def _looked_up(self, descriptors: Tensor, batch: LookupBatch) -> list[tuple[int, Tensor]]:
        """Of each lookup of these tables: the number of the table among them, and the ids."""
        found: list[tuple[int, Tensor]] = []
        if not self._positions:
            return found
        for table, feature in descriptors[:, _TABLE_AND_FEATURE].tolist():
            if table in self._positions:
                first, last = (int(batch.offsets[(feature + edge) * batch.size]) for edge in (0, 1))
                found.append((self._positions.index(table), batch.values[first:last]))
        return found


def refuse_all_rows(table: str, why: str) -> None:
    """Raises for a table whose rows cannot take every step."""
    raise ConfigError(
        f"Rows of table '{table}' {why}, and its optimizer has rows=all: every row takes every step; use "
        "rows=touched, or a dense table in one process."
    )
