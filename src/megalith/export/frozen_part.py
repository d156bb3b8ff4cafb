"""`FrozenLogits`: a frozen model in plain pieces: lookups over its rows, then its program in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from megalith.export.interpret import run_program
from megalith.export.manifest import FrozenTableRecord
from megalith.export.program import ModelProgram
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.table import FrozenTable


class FrozenTensors(Protocol):
    """Where the tensors of a frozen model come from."""

    def table(self, name: str) -> Mapping[str, Tensor]:
        """`rows`, and where a table has them `starts` and `ids`."""

    def weights(self) -> Mapping[str, Tensor]:
        """Those of the program."""


def frozen_lookup(
    tensors: FrozenTensors, records: Sequence[FrozenTableRecord], features: Sequence[str]
) -> FrozenLookup:
    """Pooled vectors of all tables, as the trained ones gave them: table by table, feature by feature."""
    places = {name: place for place, name in enumerate(features)}
    tables = []
    for record in records:
        held = tensors.table(record.name)
        tables.append(
            FrozenTable(
                rows=held["rows"],
                form=RowFormat(record.precision, record.scale),
                dim=record.dim,
                features=tuple(places[name] for name in record.features),
                pooling=record.pooling,
                padding=record.padding_index,
                chunk=record.chunk,
                starts=held.get("starts"),
                ids=held.get("ids"),
                unknown=record.unknown,
                name=record.name,
            )
        )
    return FrozenLookup(tables, features)


class FrozenLogits:
    """Logits of batches, by a frozen model's own rows and weights."""

    def __init__(
        self,
        tensors: FrozenTensors,
        records: Sequence[FrozenTableRecord],
        features: Sequence[str],
        program: ModelProgram,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.lookup = frozen_lookup(tensors, records, features)
        self.program = program
        self.weights = tensors.weights() if weights is None else weights

    def __call__(self, dense: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        """[samples, outputs] of numbers [samples, num_dense] and ids, feature-major."""
        return run_program(self.program, self.weights, dense, self.lookup(values, offsets))
