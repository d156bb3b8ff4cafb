"""What is compared: a frozen model on some backends, or, from `megalith.train`, a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.backends.base import LoadSettings, ModelSource, Outputs
from megalith.export.backends.choice import load_whole, parse_choice
from megalith.export.backends.inputs import LookupColumns, ScoreRequest, lookup_columns
from megalith.export.backends.kernels.description import dense_description
from megalith.export.backends.programs import products_of
from megalith.export.backends.registry import find_backend
from megalith.export.difference.values import operation_value, program_values
from megalith.export.program import EMBEDDED, ModelProgram, Operation


class ComparedSide(Protocol):
    """A model that shows what it computes, step by step."""

    @property
    def label(self) -> str:
        """What a report calls it."""

    @property
    def program(self) -> ModelProgram:
        """Its dense part."""

    @property
    def features(self) -> Sequence[str]:
        """That a request carries ids of, in its order."""

    @property
    def columns(self) -> Sequence[LookupColumns]:
        """Where the pooled vectors of each feature in each table stand."""

    def table_form(self, table: str) -> str:
        """The precision of a table."""

    def pooled(self, request: ScoreRequest) -> Tensor:
        """Pooled vectors, float32 [samples, columns]."""

    def values(self, request: ScoreRequest) -> Mapping[str, Tensor]:
        """What every operation gives of the numbers and pooled vectors of a request."""

    def alone(self, operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
        """What one operation gives of these inputs."""

    def outputs(self, request: ScoreRequest) -> Outputs:
        """What is served."""

    def output_limits(self) -> Mapping[str, float]:
        """How far each output may be from another that runs the same; empty where that is not known."""


class FrozenSide:
    """A frozen model on a choice of backends."""

    def __init__(self, model: ModelSource, label: str, backend: str | None = None) -> None:
        self.model = model
        self.choice = parse_choice(backend or model.manifest.backend)
        self.label = f"{label} on {self.choice}"
        self.program = model.manifest.program
        self.features = tuple(feature.name for feature in model.manifest.features)
        self.columns = lookup_columns(model.manifest)
        self._precisions = {table.name: table.precision for table in model.manifest.tables}
        dense = self.choice.dense or self.choice.lookups
        self._dense, self._dense_settings = find_backend(dense.name), LoadSettings(options=dense.options)
        self._widths = dense_description(self.program, model.weights(), products_of(model)).columns

    def table_form(self, table: str) -> str:
        """The precision of a table."""
        return self._precisions[table]

    def pooled(self, request: ScoreRequest) -> Tensor:
        """Pooled vectors of the backend that looks up."""
        chosen = self.choice.lookups
        backend = find_backend(chosen.name)
        if "lookups" not in backend.parts:
            raise ConfigError(
                f"Backend '{chosen.name}' runs no lookups of their own; pair it with one that does, such as "
                f"native+{chosen.name}."
            )
        part = backend.load(self.model, "lookups", LoadSettings(options=chosen.options))
        try:
            return part.run(request)[EMBEDDED].clone()
        finally:
            part.close()

    def values(self, request: ScoreRequest) -> Mapping[str, Tensor]:
        """What every operation gives."""
        return program_values(self._dense, self._dense_settings, self.model, request, self._widths)

    def alone(self, operation: Operation, inputs: Sequence[Tensor]) -> Tensor:
        """What one operation gives of these inputs."""
        width = self._widths[operation.output]
        return operation_value(self._dense, self._dense_settings, self.model, operation, inputs, width)

    def outputs(self, request: ScoreRequest) -> Outputs:
        """What the whole model answers."""
        part = load_whole(self.model, self.choice)
        try:
            return {task: value.clone() for task, value in part.run(request).items()}
        finally:
            part.close()

    def output_limits(self) -> Mapping[str, float]:
        """The backend's own tolerance."""
        return self._dense.tolerance(self.model, self._dense_settings.options)
