"""One part of one model on the backend that is checked, beside the twins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.conformance.findings import Verdict, compared
from megalith.export.backends.conformance.requests import RequestMaker
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.twins import TorchBackend
from megalith.export.backends.tolerance import FLOAT32
from megalith.export.program import EMBEDDED

_HALF = 1e-3
"""Two float32 numbers that are close may round to neighbours of float16."""


class PartProbe:
    """What a check needs: the loaded part, requests for it, and what the twins answer."""

    def __init__(
        self, model: ModelSource, backend: Backend, part: Part, settings: LoadSettings, largest_batch: int
    ) -> None:
        self.model, self.backend, self.part = model, backend, part
        self.settings, self.largest_batch = settings, largest_batch
        self.make = RequestMaker(model, part)
        self.loaded = backend.load(model, part, settings)
        self._twins = TorchBackend().load(model, part, LoadSettings(threads=settings.threads))
        self._lookups: LoadedPart | None = None

    def wanted(self, request: ScoreRequest) -> Outputs:
        """What the twins answer."""
        return self._twins.run(request)

    def against(self, asked: str, wanted: Outputs, got: Outputs, half: bool = False) -> Verdict:
        """A comparison at what the backend promises of this part."""
        exact = self.part == "lookups" and "lookups" in self.backend.exact
        program = self.model.manifest.program
        if exact or half or self.part == "lookups":
            plain = 0.0 if exact else _HALF if half else FLOAT32
            return compared(asked, wanted, got, plain, program)
        limits = self.backend.tolerance(self.model, self.settings.options)
        return compared(asked, wanted, got, limits, program)

    def dense_request(self, request: ScoreRequest) -> ScoreRequest:
        """A request to the whole model as one to its dense part."""
        if not self.model.manifest.program.inputs.get(EMBEDDED):
            return ScoreRequest(dense=request.dense)
        if self._lookups is None:
            self._lookups = TorchBackend().load(self.model, "lookups", LoadSettings())
        return ScoreRequest(dense=request.dense, embedded=self._lookups.run(request)[EMBEDDED])

    @contextmanager
    def another(self, **changes: Any) -> Iterator[LoadedPart]:
        """A second instance of the part, closed at the end."""
        loaded = self.backend.load(self.model, self.part, replace(self.settings, **changes))
        try:
            yield loaded
        finally:
            loaded.close()

    def close(self) -> None:
        """Ends what was loaded."""
        self.loaded.close()
        self._twins.close()
