"""Embeddings of mixed dims: vectors of some tables, brought to the model's dim by linear layers without bias
(arXiv 1909.11810)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from megalith.core.schema import TableSpec
from megalith.models.base import ClickModel


class ProjectedModel(ClickModel):
    """A model over vectors of one dim whose tables hold some in others. A layer belongs to a table."""

    def __init__(
        self, model: ClickModel, tables: Sequence[TableSpec], dim: int, projected: Sequence[str]
    ) -> None:
        super().__init__()
        self.model = model
        self.projections = nn.ModuleList()
        # What stands side by side in the output of the tables: its columns, and its layer if it has one.
        self._widths: list[int] = []
        self._layers: list[int | None] = []
        for table in tables:
            layer = None
            if table.name in projected:
                layer = len(self.projections)
                self.projections.append(nn.Linear(table.dim, dim, bias=False))
            if layer is None and self._layers and self._layers[-1] is None:
                self._widths[-1] += table.output_dim
            else:
                self._widths.append(table.output_dim)
                self._layers.append(layer)
        self._takes_begun = len(inspect.signature(model.forward).parameters) > 2

    def begin(self, dense: Tensor) -> Tensor | None:
        """What the model computes without vectors."""
        return self.model.begin(dense) if self._takes_begun else None

    def forward(self, dense: Tensor, embedded: Tensor, begun: Tensor | None = None) -> Tensor:
        """The logit of each sample."""
        pieces = []
        for piece, number in zip(embedded.split(self._widths, dim=1), self._layers, strict=True):
            if number is None:
                pieces.append(piece)
            else:
                layer = self.projections[number]
                vectors = piece.unflatten(1, (-1, layer.in_features))
                pieces.append(layer(vectors).flatten(1))
        vectors = torch.cat(pieces, dim=1)
        logits: Tensor = self.model(dense, vectors, *(() if begun is None else (begun,)))
        return logits
