"""Columns of the pooled output and the sources they come from: put together, and taken apart again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megalith.ops.sharding.copy_columns import copy_columns
from megalith.sharding.layout.types import ColumnRange


class ColumnGather:
    """Puts columns of sources side by side and adds further levels to them."""

    def __init__(self, levels: Sequence[Sequence[ColumnRange]]) -> None:
        self._sources = sorted({span.source for level in levels for span in level})
        numbers = {source: number for number, source in enumerate(self._sources)}
        spans = [(numbers[span.source], *span[1:]) for level in levels for span in level]
        self._runs = torch.tensor(spans, dtype=torch.int64).view(-1, 4)
        self._num_copied = len(levels[0]) if levels else 0
        self._width = sum(span.width for span in levels[0]) if levels else 0

    def __call__(self, chunks: Mapping[int, Tensor], batch: int) -> Tensor:
        """[batch, columns of the first level]: a copy, since sources may be buffers of an exchange."""
        out = torch.empty(batch, self._width)
        copy_columns([chunks[source] for source in self._sources], self._runs, self._num_copied, out)
        return out


class ColumnSplit:
    """Takes the columns of one source out of those of the output."""

    def __init__(self, spans: Sequence[ColumnRange]) -> None:
        places = list(itertools.accumulate((span.width for span in spans), initial=0))
        taken = [(0, span.output, place, span.width) for span, place in zip(spans, places, strict=False)]
        self._runs = torch.tensor(taken, dtype=torch.int64).view(-1, 4)
        self.width = places[-1]

    def __call__(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            if len(self._runs) == 1 and self.width == rows.shape[1]:
                return rows
            out = torch.empty(len(rows), self.width)
        copy_columns([rows], self._runs, len(self._runs), out)
        return out
