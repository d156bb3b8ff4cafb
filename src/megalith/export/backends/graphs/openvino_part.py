"""The dense part on OpenVINO: any of its devices."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch import Tensor, from_numpy

from megalith.core.errors import ConfigError, nearest
from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.inputs import RequestIds
from megalith.export.backends.programs import products_of, program_of, weight_bytes
from megalith.export.program import DENSE, EMBEDDED


class OpenVinoBackend(Backend):
    """The program as an OpenVINO model."""

    name = "openvino"
    parts = ("dense",)
    options = {
        "device": "such as CPU, GPU or NPU; by default CPU",
        "precision": "float32 runs every layer so, whatever the model has; by default as the model has them",
    }

    def unavailable(self) -> str | None:
        """Needs its package."""
        if find_spec("openvino") is None:
            return (
                "Backend 'openvino' needs the package 'openvino', which is not installed; pip install "
                "'megalith[openvino]'."
            )
        return None

    def settings_to_try(self, model: ModelSource, part: Part) -> tuple[dict[str, str], ...]:
        """As the model is, and in float32 where that is another thing."""
        del part
        narrow = program_of(model, "float32") != model.manifest.program
        return ({}, {"precision": "float32"}) if narrow else ({},)

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> OpenVinoPart:
        """Builds the graph and compiles it for the device."""
        self.check_load(part, settings)
        return OpenVinoPart(model, part, settings)


class OpenVinoPart(LoadedPart):
    """A compiled model; every thread has a request of its own on it."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        super().__init__(model.manifest, part, settings)
        import threading

        import openvino

        from megalith.export.backends.graphs.lowering import lower
        from megalith.export.backends.graphs.openvino_graph import OpenVinoBuilder

        program = program_of(model, settings.options.get("precision"))
        builder = OpenVinoBuilder()
        lower(program, model.weights(), products_of(model), builder)
        core = openvino.Core()
        device = settings.options.get("device", "CPU")
        there = core.available_devices
        if device not in there:
            raise ConfigError(f"OpenVINO has no device '{device}' here; {nearest(device, there)}")
        config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if device == "CPU":
            config |= {"INFERENCE_NUM_THREADS": settings.threads, "NUM_STREAMS": 1}
        self._compiled: Any = core.compile_model(builder.model(), device, config)
        self._names = [task.name for task in program.outputs]
        self._reads = {each.get_any_name() for each in self._compiled.inputs}
        self._requests_by_thread = threading.local()
        self._bytes = {"dense": weight_bytes(program, model.weights())}

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """One inference; inputs are read where they lie."""
        given: dict[str, Any] = {}
        if dense is not None and DENSE in self._reads:
            given[DENSE] = dense.numpy()
        if ids is not None and ids.pooled is not None and EMBEDDED in self._reads:
            given[EMBEDDED] = ids.pooled.numpy()
        request = getattr(self._requests_by_thread, "request", None)
        if request is None:
            request = self._requests_by_thread.request = self._compiled.create_infer_request()
        found = request.infer(given, share_inputs=True)
        return {name: from_numpy(found[name].copy()) for name in self._names}

    def bytes(self) -> dict[str, int]:
        """The weights, as the model keeps them."""
        return dict.fromkeys(self._bytes, 0) if self.closed else dict(self._bytes)

    def release(self) -> None:
        """Lets go of the compiled model and its requests."""
        import threading

        self._compiled, self._requests_by_thread = None, threading.local()
