"""Tables that nobody looks up any more, or whose vectors get no gradient: both cost memory and give nothing.

Lookups are counted in every batch, by feature. Gradients are looked at in one step of each report: the
gradient of the pooled vectors has the columns of each table side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.schema import TableSpec
from megalith.data.batch import Batch
from megalith.train.monitor.anomalies import DEAD_TABLE, Anomaly, AnomalyLog

DEAD_REPORTS = 5
"""A table is dead when so many reports in a row find it unused, or without gradient."""


class TableUse(NamedTuple):
    """What one rank saw of each table since the last report."""

    lookups: list[int]
    learns: list[bool] | None
    """Whether any column got a gradient in the step that was looked at; None where none was."""


class TableCounter:
    """Counts on one rank; `features` are those of batches, in their order."""

    def __init__(self, tables: Sequence[TableSpec], features: Sequence[str]) -> None:
        position = {feature: number for number, feature in enumerate(features)}
        self._features = [[position[name] for name in table.features] for table in tables]
        self._columns = [
            0 if table.pooling == "none" else table.dim * len(table.features) for table in tables
        ]
        self._lookups = torch.zeros(len(features), dtype=torch.int64)
        self._learns: list[bool] | None = None

    def count(self, batch: Batch) -> None:
        """Takes a batch in."""
        if batch.batch_size:
            self._lookups += batch.offsets[:: batch.batch_size].diff()

    def see_gradient(self, gradient: Tensor) -> None:
        """The gradient of the pooled vectors of this rank's samples."""
        if gradient.shape[1] != sum(self._columns):
            return
        learns = (gradient != 0).any(dim=0)
        self._learns = [
            not columns or bool(part.any())
            for columns, part in zip(self._columns, learns.split(self._columns), strict=True)
        ]

    def take(self) -> TableUse:
        """What was seen since the last call."""
        of_feature = self._lookups.tolist()
        use = TableUse([sum(of_feature[place] for place in own) for own in self._features], self._learns)
        self._lookups, self._learns = torch.zeros_like(self._lookups), None
        return use


class TableWatch:
    """Tells of dead tables, on the first rank, from what all ranks saw."""

    def __init__(self, tables: Sequence[TableSpec], log: AnomalyLog) -> None:
        self._names, self._log = [table.name for table in tables], log
        self._unused, self._untrained = [0] * len(tables), [0] * len(tables)

    def see(self, step: int, found: Sequence[TableUse]) -> None:
        """What ranks saw since the last report."""
        learning = [use.learns for use in found if use.learns is not None]
        for number, name in enumerate(self._names):
            used = any(use.lookups[number] for use in found)
            learns = any(each[number] for each in learning)
            self._unused[number] = 0 if used else self._unused[number] + 1
            if learning:
                # A table that is not used gets no gradient either, and that is said already.
                self._untrained[number] = 0 if learns or not used else self._untrained[number] + 1
            self._judge(step, number, name)

    def _judge(self, step: int, number: int, name: str) -> None:
        if self._unused[number] >= DEAD_REPORTS:
            message = (
                f"Table '{name}' was not looked up in the last {DEAD_REPORTS} reports: see whether its "
                "features are empty in the data (`megalith data stats`), or leave them out."
            )
        elif self._untrained[number] >= DEAD_REPORTS:
            message = (
                f"Table '{name}' got no gradient in the last {DEAD_REPORTS} reports: see whether the model "
                "uses its vectors, or whether layers above it have died from too high a dense.lr."
            )
        else:
            self._log.end(DEAD_TABLE, name)
            return
        self._log.begin(Anomaly(DEAD_TABLE, step, message, name))
