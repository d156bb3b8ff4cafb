"""The plain-torch truth of `CoupledUpdate`: same arguments, same results, one table at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.ops.embedding_twin import KINDS, table_seed, touched_rows
from megalith.ops.updates import NUM_SUMS, Halfway, Step, begin_rows_, finish_rows_


class CoupledUpdateTwin:
    def __init__(
        self,
        weights: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        slots: Tensor,
        columns: Sequence[int],
        sections: Sequence[tuple[int, int, int]],
    ) -> None:
        self._tables = list(zip(weights, first, second, strict=True))
        self._weights, self._slots = weights, slots
        self._columns, self._sections = columns, sections
        self._steps: list[Step] = []
        self._halfway: dict[int, Halfway] = {}

    def begin(
        self,
        steps: Tensor,
        values: Tensor,
        offsets: Tensor,
        sample_weights: Tensor | None,
        num_features: int,
        gradient: Tensor | None,
        sequence_gradients: Sequence[Tensor | None] = (),
    ) -> list[Tensor]:
        lookup = self._slots, values, offsets, sample_weights, num_features
        touched = touched_rows(self._weights, *lookup, gradient, sequence_gradients)
        self._steps = [Step(*one) for one in steps.tolist()]
        self._halfway = {}
        sums = {}
        for table, found in touched.items():
            step = self._steps[table]
            state = *self._tables[table], found, step
            self._halfway[table], sums[table] = begin_rows_(KINDS[int(step.kind)], *state)
        parts = []
        for table, first, last in self._sections:
            if table in touched:
                rows = touched[table].rows
                parts.append(sums[table][(rows >= first) & (rows < last)].reshape(-1))
            else:
                parts.append(torch.zeros(0))
        return parts

    def finish(self, totals: Sequence[Tensor], seed: int) -> None:
        whole, at = torch.cat(list(totals)), 0
        for table, halfway in sorted(self._halfway.items()):
            step = self._steps[table]
            kind, state = KINDS[int(step.kind)], self._tables[table]
            size, own_seed = len(halfway.rows) * NUM_SUMS[kind], table_seed(seed, table)
            sums = whole[at : at + size].view(-1, NUM_SUMS[kind])
            finish_rows_(kind, *state, halfway, sums, self._columns[table], step, own_seed)
            at += size
