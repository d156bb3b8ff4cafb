"""What backends share that build a graph of the program and hand it to another library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Part
from megalith.export.backends.graphs.lowering import lower
from megalith.export.backends.inputs import RequestIds
from megalith.export.backends.programs import products_of, program_of, weight_bytes
from megalith.export.program import DENSE, EMBEDDED

PRECISION = "float32 runs every layer so, whatever the model has; by default as the model has them"
"""The option `precision` of such a backend."""


class GraphBackend(Backend):
    """Runs dense parts, as the model has them or in float32."""

    parts = ("dense",)

    def settings_to_try(self, model: ModelSource, part: Part) -> tuple[dict[str, str], ...]:
        """As the model is, and in float32 where that is another thing."""
        del part
        narrow = program_of(model, "float32") != model.manifest.program
        return ({}, {"precision": "float32"}) if narrow else ({},)

    def rounds_as_defined(self, model: ModelSource, options: Mapping[str, str]) -> bool:
        """Not where layers in few bits are run in float32."""
        del model
        return options.get("precision") != "float32"


class GraphPart(LoadedPart):
    """A dense part whose operations a builder has put together."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings, builder: Any) -> None:
        super().__init__(model.manifest, part, settings)
        program = program_of(model, settings.options.get("precision"))
        lower(program, model.weights(), products_of(model), builder)
        self.names = [task.name for task in program.outputs]
        """Of the outputs, in their order."""
        self._bytes = {"dense": weight_bytes(program, model.weights())}
        self._reads: frozenset[str] = frozenset()

    def set_inputs(self, names: Iterable[str]) -> None:
        """Says which inputs the library has kept: one that nothing reads may be gone."""
        self._reads = frozenset(names)

    def given(self, dense: Tensor | None, ids: RequestIds | None) -> dict[str, Any]:
        """The inputs of a request as arrays, where they lie."""
        found: dict[str, Any] = {}
        if dense is not None and DENSE in self._reads:
            found[DENSE] = dense.numpy()
        if ids is not None and ids.pooled is not None and EMBEDDED in self._reads:
            found[EMBEDDED] = ids.pooled.numpy()
        return found

    def bytes(self) -> dict[str, int]:
        """The weights, as the library keeps them."""
        return dict.fromkeys(self._bytes, 0) if self.closed else dict(self._bytes)
