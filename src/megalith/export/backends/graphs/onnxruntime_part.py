"""The dense part on onnxruntime: any of its execution providers, so any vendor's card that has one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

from torch import Tensor, from_numpy

from megalith.core.errors import ConfigError, nearest
from megalith.export.backends.base import LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.graphs.graph_part import PRECISION, GraphBackend, GraphPart
from megalith.export.backends.inputs import RequestIds

_ROUNDINGS = ("sample", "batch")


class OnnxRuntimeBackend(GraphBackend):
    """The program as an ONNX model in onnxruntime's sessions."""

    name = "onnxruntime"
    exact = frozenset({"int8"})
    options = {
        "provider": "execution provider, such as CUDAExecutionProvider; by default CPUExecutionProvider",
        "precision": PRECISION,
        "rounding": "sample (as the twins) or batch: whose range activations of int8 layers are rounded by",
    }

    def unavailable(self) -> str | None:
        """Needs two packages, one to build graphs and one to run them."""
        for package in ("onnx", "onnxruntime"):
            if find_spec(package) is None:
                return (
                    f"Backend 'onnxruntime' needs the package '{package}', which is not installed; "
                    "pip install 'megalith[onnxruntime]'."
                )
        return None

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> OnnxRuntimePart:
        """Builds the graph and a session for it."""
        self.check_load(part, settings)
        return OnnxRuntimePart(model, part, settings)


class OnnxRuntimePart(GraphPart):
    """A session of one program."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        import onnxruntime

        from megalith.export.backends.graphs.onnx_graph import OnnxBuilder

        options = settings.options
        rounding = options.get("rounding", "sample")
        if rounding not in _ROUNDINGS:
            raise ConfigError(f"Option rounding={rounding} of onnxruntime: {nearest(rounding, _ROUNDINGS)}")
        builder = OnnxBuilder(cast(Any, rounding))
        super().__init__(model, part, settings, builder)
        chosen = onnxruntime.SessionOptions()
        chosen.intra_op_num_threads = settings.threads
        chosen.inter_op_num_threads = 1
        # Threads that spin while they wait take the cores of lookups and of other instances.
        chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
        chosen.log_severity_level = 3
        provider = options.get("provider", "CPUExecutionProvider")
        there = onnxruntime.get_available_providers()
        if provider not in there:
            raise ConfigError(f"onnxruntime has no provider '{provider}' here; {nearest(provider, there)}")
        content = builder.model()
        self._session: Any = onnxruntime.InferenceSession(content, chosen, providers=[provider])
        self.set_inputs(each.name for each in self._session.get_inputs())

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """One run of the session; tensors are read where they lie."""
        found = self._session.run(None, self.given(dense, ids))
        return {name: from_numpy(out) for name, out in zip(self.names, found, strict=True)}

    def release(self) -> None:
        """Ends the session."""
        self._session = None
