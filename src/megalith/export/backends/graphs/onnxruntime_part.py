"""The dense part on onnxruntime: any of its execution providers, so any vendor's card that has one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

from torch import Tensor, from_numpy

from megalith.core.errors import ConfigError, nearest
from megalith.export.backends.base import Backend, LoadedPart, LoadSettings, ModelSource, Outputs, Part
from megalith.export.backends.inputs import RequestIds
from megalith.export.backends.programs import products_of, program_of, weight_bytes
from megalith.export.program import DENSE, EMBEDDED

_ROUNDINGS = ("sample", "batch")


class OnnxRuntimeBackend(Backend):
    """The program as an ONNX model in onnxruntime's sessions."""

    name = "onnxruntime"
    parts = ("dense",)
    exact = frozenset({"int8"})
    options = {
        "provider": "execution provider, such as CUDAExecutionProvider; by default CPUExecutionProvider",
        "precision": "float32 runs every layer so, whatever the model has; by default as the model has them",
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

    def settings_to_try(self, model: ModelSource, part: Part) -> tuple[dict[str, str], ...]:
        """As the model is, and in float32 where that is another thing."""
        del part
        narrow = program_of(model, "float32") != model.manifest.program
        return ({}, {"precision": "float32"}) if narrow else ({},)

    def load(self, model: ModelSource, part: Part, settings: LoadSettings) -> OnnxRuntimePart:
        """Builds the graph and a session for it."""
        self.check_load(part, settings)
        return OnnxRuntimePart(model, part, settings)


class OnnxRuntimePart(LoadedPart):
    """A session of one program."""

    def __init__(self, model: ModelSource, part: Part, settings: LoadSettings) -> None:
        super().__init__(model.manifest, part, settings)
        import onnxruntime

        from megalith.export.backends.graphs.lowering import lower
        from megalith.export.backends.graphs.onnx_graph import OnnxBuilder

        options = settings.options
        rounding = options.get("rounding", "sample")
        if rounding not in _ROUNDINGS:
            raise ConfigError(f"Option rounding={rounding} of onnxruntime: {nearest(rounding, _ROUNDINGS)}")
        program = program_of(model, options.get("precision"))
        builder = OnnxBuilder(cast(Any, rounding))
        lower(program, model.weights(), products_of(model), builder)
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
        self._names = [task.name for task in program.outputs]
        self._reads = {each.name for each in self._session.get_inputs()}
        self._bytes = {"dense": weight_bytes(program, model.weights())}

    def compute(self, batch: int, dense: Tensor | None, ids: RequestIds | None) -> Outputs:
        """One run of the session; tensors are read where they lie."""
        given: dict[str, Any] = {}
        if dense is not None and DENSE in self._reads:
            given[DENSE] = dense.numpy()
        if ids is not None and ids.pooled is not None and EMBEDDED in self._reads:
            given[EMBEDDED] = ids.pooled.numpy()
        return {
            name: from_numpy(out)
            for name, out in zip(self._names, self._session.run(None, given), strict=True)
        }

    def bytes(self) -> dict[str, int]:
        """The weights, as the session keeps them."""
        return dict.fromkeys(self._bytes, 0) if self.closed else dict(self._bytes)

    def release(self) -> None:
        """Ends the session."""
        self._session = None
