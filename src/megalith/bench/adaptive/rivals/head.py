"""`RivalModel`: a model over the vectors that a method stores, brought to the shape that the model reads.

What is stored may be narrower than the model's vectors (padded or projected), in two parts (multiplied or
added), or in another order. Projections are parameters of the dense model: its optimizer trains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from megalith.core.schema import FeatureSpec, TableSpec
from megalith.models.base import ClickModel, ModelInputs
from megalith.models.registry import AnyModel, build_model

Combination = Literal["copy", "pad", "project", "multiply", "add"]


class VectorSource(NamedTuple):
    """How one vector of the model comes from columns that are stored."""

    parts: tuple[tuple[str, str], ...]
    """(table, feature) of each stored vector: two for `multiply` and `add`, otherwise one."""
    dim: int
    """Columns that the model reads."""
    how: Combination = "copy"


class RivalModel:
    """The settings of a model whose tables are replaced; a learner uses it as any model's."""

    dims: ClassVar[dict[str, int]] = {}
    """Vectors have the dims that the model itself reads."""

    def __init__(self, model: AnyModel, stored: Sequence[TableSpec], sources: Sequence[VectorSource]) -> None:
        self._model, self.stored, self.sources = model, list(stored), list(sources)

    def tables(self, features: Sequence[FeatureSpec]) -> list[TableSpec]:
        """Those that are stored."""
        del features
        return self.stored

    def build(self, inputs: ModelInputs) -> ClickModel:
        """The model behind its vectors; its own start values are those that it has without a method."""
        model = build_model(self._model, inputs)
        return VectorHead(model, self.stored, self.sources)


def output_columns(tables: Sequence[TableSpec]) -> dict[tuple[str, str], tuple[int, int]]:
    """By table and feature, the columns of a collection's pooled output."""
    columns, first = {}, 0
    for table in tables:
        for feature in table.features:
            columns[table.name, feature] = first, first + table.dim
            first += table.dim
    return columns


class VectorHead(ClickModel):
    """Makes the model's vectors from stored ones, and calls the model."""

    def __init__(
        self, model: ClickModel, stored: Sequence[TableSpec], sources: Sequence[VectorSource]
    ) -> None:
        super().__init__()
        self.model = model
        columns = output_columns(stored)
        self._sources = [(source, [columns[part] for part in source.parts]) for source in sources]
        self.projections = nn.ModuleDict()
        for number, (source, parts) in enumerate(self._sources):
            if source.how == "project":
                (first, last), *_ = parts
                self.projections[str(number)] = nn.Linear(last - first, source.dim, bias=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """The logits of the model."""
        vectors = [self._vector(number, embedded) for number in range(len(self._sources))]
        logits: Tensor = self.model(dense, torch.cat(vectors, dim=1))
        return logits

    def _vector(self, number: int, embedded: Tensor) -> Tensor:
        source, parts = self._sources[number]
        vector, *second = (embedded[:, first:last] for first, last in parts)
        if source.how == "project":
            projected: Tensor = self.projections[str(number)](vector)
            return projected
        if source.how == "pad":
            return nn.functional.pad(vector, (0, source.dim - vector.shape[1]))
        if source.how == "multiply":
            return vector * second[0]
        return vector + second[0] if source.how == "add" else vector
