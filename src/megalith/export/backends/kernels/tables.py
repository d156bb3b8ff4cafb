"""Tables of a model as `megalith.ops.frozen` looks them up, those of the user apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from megalith.export.backends.base import ModelSource
from megalith.export.backends.inputs import Bags, PartInputs, RequestIds
from megalith.export.backends.kernels.resident import ResidentTable, resident_table
from megalith.export.manifest import ModelManifest
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.frozen.table import FrozenTable


class PooledLookup(Protocol):
    """Pooled vectors of some tables."""

    def __call__(self, values: Tensor, offsets: Tensor, /) -> Tensor:
        """Float32 [batch, columns]."""


LookupT = TypeVar("LookupT", bound=PooledLookup)


class ColumnRun(NamedTuple):
    """Columns that come one after the other both in a lookup and in the whole."""

    source: int
    target: int
    width: int


def frozen_tables(
    manifest: ModelManifest,
    inputs: PartInputs,
    features: Sequence[str],
    tensors_of: Callable[[str], Mapping[str, Tensor]],
) -> tuple[list[FrozenTable], list[ColumnRun]]:
    """Tables as some features look them up, in the order of the manifest, and where their columns go."""
    wanted = {column.table for column in inputs.columns}
    positions = {name: position for position, name in enumerate(features)}
    tables, runs, source = [], list[ColumnRun](), 0
    targets = {(column.table, column.feature): column.first for column in inputs.columns}
    for record in manifest.tables:
        read = [name for name in record.features if name in positions]
        if record.name not in wanted or not read:
            continue
        tensors = tensors_of(record.name)
        tables.append(
            FrozenTable(
                rows=tensors["rows"],
                form=RowFormat(record.precision, record.scale),
                dim=record.dim,
                features=tuple(positions[name] for name in read),
                pooling=record.pooling,
                padding=record.padding_index,
                chunk=record.chunk,
                starts=tensors.get("starts"),
                ids=tensors.get("ids"),
                unknown=record.unknown,
                name=record.name,
                changed=tensors.get("changed"),
                changed_rows=tensors.get("changed_rows"),
            )
        )
        for name in read:
            target = targets[record.name, name]
            before = runs[-1] if runs else ColumnRun(0, 0, 0)
            if before.source + before.width == source and before.target + before.width == target:
                runs[-1:] = [before._replace(width=before.width + record.dim)]
            else:
                runs.append(ColumnRun(source, target, record.dim))
            source += record.dim
    return tables, runs


class PartLookups(Generic[LookupT]):
    """The lookups of a part: all features at once, or those of the user once and repeated for every sample.

    `make` builds a lookup of some tables, when the first request needs it: most servers send ids in one of
    the two ways. With `in_memory`, rows are copied out of the file first.
    """

    def __init__(
        self,
        model: ModelSource,
        inputs: PartInputs,
        make: Callable[[list[FrozenTable], Sequence[str]], LookupT],
        in_memory: bool = False,
    ) -> None:
        self._model, self._inputs, self._make, self._in_memory = model, inputs, make, in_memory
        self._resident: dict[str, ResidentTable] = {}
        self._width = inputs.columns[-1].last if inputs.columns else 0
        self._made: dict[tuple[str, ...], tuple[LookupT | None, list[ColumnRun]]] = {}
        self._making = threading.Lock()
        self._lookup(inputs.features)

    def _lookup(self, features: tuple[str, ...]) -> tuple[LookupT | None, list[ColumnRun]]:
        found = self._made.get(features)
        if found is None:
            with self._making:
                if features not in self._made:
                    tables, runs = frozen_tables(self._model.manifest, self._inputs, features, self._tensors)
                    self._made[features] = self._make(tables, features) if tables else None, runs
                found = self._made[features]
        return found

    def _tensors(self, table: str) -> Mapping[str, Tensor]:
        if not self._in_memory:
            return self._model.table(table)
        if table not in self._resident:
            self._resident[table] = resident_table(self._model, table)
        return self._resident[table].tensors

    def whole(self) -> LookupT | None:
        """The lookup of all features; None where there is no table."""
        return self._lookup(self._inputs.features)[0]

    def made(self) -> list[LookupT]:
        """Those that there are by now."""
        return [lookup for lookup, _ in self._made.values() if lookup is not None]

    def __call__(self, batch: int, ids: RequestIds) -> Tensor:
        """Pooled vectors, float32 [batch, columns]."""
        bags, user = ids.bags, ids.user
        assert bags is not None
        if user is None:
            lookup, _ = self._lookup(self._inputs.features)
            return torch.empty(batch, 0) if lookup is None else lookup(bags.values, bags.offsets)
        out = torch.empty(batch, self._width)
        _spread(out, *self._lookup(self._inputs.item_features), bags)
        # A row a user, which every sample of the user gets.
        _spread(out, *self._lookup(self._inputs.user_features), user, ids.user_samples)
        return out


def _spread(
    out: Tensor,
    lookup: PooledLookup | None,
    runs: list[ColumnRun],
    bags: Bags,
    samples: Sequence[int] | None = None,
) -> None:
    """Puts vectors where they belong; with `samples`, each row into so many."""
    if lookup is None:
        return
    pooled = lookup(bags.values, bags.offsets)
    if samples is None:
        for source, target, width in runs:
            out[:, target : target + width] = pooled[:, source : source + width]
        return
    first = 0
    for row, count in zip(pooled, samples, strict=True):
        for source, target, width in runs:
            out[first : first + count, target : target + width] = row[source : source + width]
        first += count


def table_bytes(model: ModelSource, inputs: PartInputs) -> int:
    """Bytes of the tables that a part reads."""
    wanted = {column.table for column in inputs.columns}
    return sum(record.bytes for record in model.manifest.tables if record.name in wanted)
