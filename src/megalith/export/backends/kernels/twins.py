"""The plain-torch twins as a backend: slow, everywhere, and what the others are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.inputs import RequestIds
from megalith.export.backends.kernels.description import dense_description, outputs_by_task
from megalith.export.backends.kernels.tables import PartLookups, PooledLookup, table_bytes
from megalith.export.backends.kernels.threads import use_threads
from megalith.export.backends.programs import products_of, weight_bytes
from megalith.export.program import DENSE, EMBEDDED
from megalith.ops.dense.operations import DenseDescription
from megalith.ops.dense.program_twin import run_program_twin
from megalith.ops.frozen.lookup_twin import frozen_lookup_twin
from megalith.ops.frozen.table import FrozenTable


class TorchBackend(Backend):
    """Every operator in plain torch."""

    name = "torch"
    parts = ("lookups", "dense", "whole")
    exact = frozenset({"lookups", "int8", "bfloat16"})

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> TorchPart:
        """Takes tables and weights as they are."""
        self.check_load(part, settings)
        return TorchPart(model, part, settings)


class TorchPart(LoadedPart):
    """Tables and a program, run by the twins."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        super().__init__(model.manifest, part, settings)
        self._program = model.manifest.program
        self.joins_users = True
        self._bytes: dict[str, int] = {}
        self._lookups: PartLookups[PooledLookup] | None = None
        self._dense: DenseDescription | None = None
        if part != "dense":
            self._lookups = PartLookups(model, self.inputs, _twin_lookup)
            self._bytes["tables"] = table_bytes(model, self.inputs)
        if part != "lookups":
            self._dense = dense_description(self._program, model.weights(), products_of(model))
            self._bytes["dense"] = weight_bytes(self._program, model.weights())

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """Looks up, interprets, or both."""
        use_threads(self.settings.threads)
        assert ids is not None
        pooled = ids.pooled if self._lookups is None else self._lookups(batch, ids)
        if self.part == "lookups":
            assert pooled is not None
            return {EMBEDDED: pooled.to(getattr(torch, self.settings.pooled))}
        assert self._dense is not None
        nothing = torch.empty(batch, 0)
        given = {DENSE: nothing if dense is None else dense, EMBEDDED: nothing if pooled is None else pooled}
        inputs = {name: given[name] for name in self._program.inputs}
        return outputs_by_task(self._program, run_program_twin(self._dense, inputs))

    def bytes(self) -> dict[str, int]:
        """Tables as they are stored, weights as they are kept."""
        return dict.fromkeys(self._bytes, 0) if self.closed else dict(self._bytes)

    def release(self) -> None:
        """Lets go of tables and weights."""
        self._lookups = self._dense = None


def _twin_lookup(tables: list[FrozenTable], features: Sequence[str]) -> PooledLookup:
    def look_up(values: Tensor, offsets: Tensor) -> Tensor:
        return frozen_lookup_twin(tables, features, values, offsets)

    return look_up
