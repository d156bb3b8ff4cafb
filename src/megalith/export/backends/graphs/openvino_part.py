"""The dense part on OpenVINO: any of its devices."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import Tensor, from_numpy

from megalith.core.errors import ConfigError, nearest
from megalith.export.backends.base import LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.graphs.graph_part import PRECISION, GraphBackend, GraphPart
from megalith.export.backends.inputs import RequestIds
from megalith.export.program import Linear


class OpenVinoBackend(GraphBackend):
    """The program as an OpenVINO model."""

    name = "openvino"
    options = {
        "device": "such as CPU, GPU or NPU; by default CPU",
        "precision": PRECISION,
    }

    def unavailable(self) -> str | None:
        """Needs its package."""
        if find_spec("openvino") is None:
            return (
                "Backend 'openvino' needs the package 'openvino', which is not installed; pip install "
                "'megalith[openvino]'."
            )
        return None

    def rounds_as_defined(self, model: ModelSource, options: Mapping[str, str]) -> bool:
        """Activations of layers in eight bits are its own matter."""
        layers = [each for each in model.manifest.program.operations if isinstance(each, Linear)]
        has_bytes = any(each.precision == "int8" for each in layers)
        return not has_bytes and super().rounds_as_defined(model, options)

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> OpenVinoPart:
        """Builds the graph and compiles it for the device."""
        self.check_load(part, settings)
        return OpenVinoPart(model, part, settings)


class OpenVinoPart(GraphPart):
    """A compiled model; every thread has a request of its own on it."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        import openvino

        from megalith.export.backends.graphs.openvino_graph import OpenVinoBuilder

        builder = OpenVinoBuilder()
        super().__init__(model, part, settings, builder)
        core = openvino.Core()
        device = settings.options.get("device", "CPU")
        there = core.available_devices
        if device not in there:
            raise ConfigError(f"OpenVINO has no device '{device}' here; {nearest(device, there)}")
        config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        if device == "CPU":
            config |= {"INFERENCE_NUM_THREADS": settings.threads, "NUM_STREAMS": 1}
            # Else it rounds activations of eight-bit layers in groups of its own, by what it finds in them.
            config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        self._compiled: Any = core.compile_model(builder.model(), device, config)
        self.set_inputs(each.get_any_name() for each in self._compiled.inputs)
        self._requests_by_thread = threading.local()

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """One inference; inputs are read where they lie."""
        request = getattr(self._requests_by_thread, "request", None)
        if request is None:
            request = self._requests_by_thread.request = self._compiled.create_infer_request()
        found = request.infer(self.given(dense, ids), share_inputs=True)
        return {name: from_numpy(found[name].copy()) for name in self.names}

    def release(self) -> None:
        """Lets go of the compiled model and its requests."""
        self._compiled, self._requests_by_thread = None, threading.local()
