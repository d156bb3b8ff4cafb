"""Columns of the pooled output: gathered from their sources, split for them again, and divided for means.

`output_dist.py` and `node_reduce.py` gather and split. A mean over rows that lie on several workers arrives
as parts of a sum; the lookup of the sample's rank divides it, and its gradient (`lookup.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megalith.ops.embedding.pooling import without_padding
from megalith.ops.sharding.copy_columns import copy_columns
from megalith.sharding.layout.types import ColumnRange, MeanOutput
from megalith.sharding.runtime.input_dist.jagged_ids import JaggedIds


class ColumnGather:
    """Puts columns of sources side by side and adds further levels to them."""

    def __init__(self, levels: Sequence[Sequence[ColumnRange]]) -> None:
        self._sources = sorted({columns.source for level in levels for columns in level})
        numbers = {source: number for number, source in enumerate(self._sources)}
        ranges = [(numbers[columns.source], *columns[1:]) for level in levels for columns in level]
        self._ranges = torch.tensor(ranges, dtype=torch.int64).view(-1, 4)
        self._num_copied = len(levels[0]) if levels else 0
        self._width = sum(columns.width for columns in levels[0]) if levels else 0

    def __call__(self, chunks: Mapping[int, Tensor], batch: int) -> Tensor:
        """[batch, columns of the first level]: a copy, since sources may be buffers of an exchange."""
        out = torch.empty(batch, self._width)
        copy_columns([chunks[source] for source in self._sources], self._ranges, self._num_copied, out)
        return out


class ColumnSplit:
    """Takes the columns of one source out of those of the output."""

    def __init__(self, columns: Sequence[ColumnRange]) -> None:
        starts = list(itertools.accumulate((part.width for part in columns), initial=0))
        ranges = [(0, part.output, start, part.width) for part, start in zip(columns, starts, strict=False)]
        self._ranges = torch.tensor(ranges, dtype=torch.int64).view(-1, 4)
        self.width = starts[-1]

    def __call__(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """[batch, width], written into `out` if given; `rows` themselves where all columns are taken."""
        if out is None:
            if len(self._ranges) == 1 and self.width == rows.shape[1]:
                return rows
            out = torch.empty(len(rows), self.width)
        copy_columns([rows], self._ranges, len(self._ranges), out)
        return out


def mean_factors(mean_outputs: Sequence[MeanOutput], ids: JaggedIds) -> list[Tensor]:
    """One over the number of ids of each bag, [batch, 1], for each of the means."""
    factors: dict[tuple[int, int | None], Tensor] = {}
    for feature, padding, _, _ in mean_outputs:
        if (feature, padding) not in factors:
            edges = ids.offsets[feature * ids.batch : (feature + 1) * ids.batch + 1]
            if padding is not None:
                values = ids.values[int(edges[0]) : int(edges[-1])]
                edges = without_padding(values, edges - edges[0], None, padding)[1]
            factors[feature, padding] = torch.diff(edges).clamp_(min=1).reciprocal().unsqueeze(1)
    return [factors[mean.feature, mean.padding] for mean in mean_outputs]


def scale_means_(rows: Tensor, mean_outputs: Sequence[MeanOutput], factors: Sequence[Tensor]) -> None:
    """Scales the columns of the means, in place."""
    for mean, factor in zip(mean_outputs, factors, strict=True):
        rows[:, mean.output : mean.output + mean.width] *= factor
