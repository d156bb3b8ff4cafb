"""The native core as a backend: pooled lookups over rows as they are stored, and the program in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import ConfigError, nearest
from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.inputs import RequestIds, ScoreRequest
from megalith.export.backends.kernels.as_trained import TrainedProducts
from megalith.export.backends.kernels.description import dense_description, outputs_by_task
from megalith.export.backends.kernels.tables import PartLookups, table_bytes
from megalith.export.backends.kernels.threads import use_threads
from megalith.export.backends.programs import products_of
from megalith.export.program import DENSE, EMBEDDED
from megalith.ops.dense.program import DenseProgram
from megalith.ops.frozen.lookup import FrozenLookup
from megalith.ops.frozen.table import FrozenTable
from megalith.ops.serving.score import InputKind, ScoreProgram

_ROWS, _DENSE = ("memory", "file"), ("native", "torch")


class NativeBackend(Backend):
    """Lookups and dense part by this package's own kernels."""

    name = "native"
    parts = ("lookups", "dense", "whole")
    exact = frozenset({"lookups", "int8", "bfloat16"})
    options = {
        "rows": "memory (copied out of the file, on huge pages, once for all instances) or file (mapped); by "
        "default memory",
        "dense": "native, or torch: layers of float32 by torch's products, as in training, for the bits "
        "of the run; by default native",
    }

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> NativePart:
        """Indexes listed ids, packs weights."""
        self.check_load(part, settings)
        return NativePart(model, part, settings)


class NativePart(LoadedPart):
    """Tables in memory and a packed program."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        super().__init__(model.manifest, part, settings)
        self._program = model.manifest.program
        self.joins_users = True
        self._lookups: PartLookups[FrozenLookup] | None = None
        self._dense: DenseProgram | TrainedProducts | None = None
        self._table_bytes = 0
        rows, dense = _option(settings, "rows", _ROWS), _option(settings, "dense", _DENSE)
        if part != "dense":
            self._lookups = PartLookups(model, self.inputs, _native_lookup, in_memory=rows == "memory")
            self._table_bytes = table_bytes(model, self.inputs)
        if part != "lookups":
            weights = model.weights()
            if dense == "torch":
                self._dense = TrainedProducts(self._program, weights)
            else:
                description = dense_description(self._program, weights, products_of(model))
                self._dense = DenseProgram(description, settings.threads)
        self._score = self._joined()

    def _joined(self) -> ScoreProgram | None:
        """Lookups and program of a whole model in one call."""
        lookup = None if self._lookups is None else self._lookups.whole()
        if lookup is None or not isinstance(self._dense, DenseProgram):
            return None
        kinds: list[InputKind] = ["numbers" if name == DENSE else "pooled" for name in self._program.inputs]
        return ScoreProgram(lookup, self._dense, kinds, self._program.inputs.get(DENSE, 0))

    def run_at_once(self, request: ScoreRequest) -> tuple[int, Outputs] | None:
        """Checks, lookups and program in one call, where ids of the user come with every sample."""
        score = self._score
        if score is None or (request.user_lengths is not None and self.inputs.user_features):
            return None
        use_threads(self.settings.threads)
        values = score.run(request.dense, request.values, request.lengths)
        if values is None:
            return None
        if values.dim() == 1:
            return len(values), {self._program.outputs[0].name: values}
        return len(values), outputs_by_task(self._program, values)

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """One call for the lookups, one for the program."""
        use_threads(self.settings.threads)
        assert ids is not None
        pooled = ids.pooled if self._lookups is None else self._lookups(batch, ids)
        if self._dense is None:
            assert pooled is not None
            return {EMBEDDED: pooled if self.settings.pooled == "float32" else pooled.half()}
        given = {DENSE: dense, EMBEDDED: pooled}
        values = self._dense.run(*(_or_nothing(given[name], batch) for name in self._program.inputs))
        return outputs_by_task(self._program, values)

    def bytes(self) -> dict[str, int]:
        """Tables, the index of listed ids, packed weights, and room for samples under way."""
        found = dict.fromkeys(("tables", "index", "dense", "scratch"), 0)
        if self._lookups is not None:
            found["tables"] = self._table_bytes
            found["index"] = sum(lookup.index_bytes() for lookup in self._lookups.made())
        if self._dense is not None:
            held = self._dense.bytes()
            found["dense"], found["scratch"] = held["weights"], held["workspaces"]
        if self._score is not None:
            found["scratch"] += self._score.scratch_bytes()
        return found

    def release(self) -> None:
        """Frees the index, the packed weights, and rows that no other instance looks up."""
        self._lookups = self._dense = self._score = None


def _option(settings: LoadSettings, name: str, choices: tuple[str, ...]) -> str:
    """What an option is set to; the first choice where it is not."""
    value = settings.options.get(name, choices[0])
    if value not in choices:
        raise ConfigError(f"Option {name}={value} of native: {nearest(value, choices)}")
    return value


def _native_lookup(tables: list[FrozenTable], features: Sequence[str]) -> FrozenLookup:
    return FrozenLookup(tables, features)


def _or_nothing(tensor: Tensor | None, batch: int) -> Tensor:
    return torch.empty(batch, 0) if tensor is None else tensor
