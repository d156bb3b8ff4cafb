"""`frozen_lookup`: the tables of a frozen model, looked up together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from megalith.export.manifest import FrozenTableRecord
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
                changed=held.get("changed"),
                changed_rows=held.get("changed_rows"),
            )
        )
    return FrozenLookup(tables, features)
