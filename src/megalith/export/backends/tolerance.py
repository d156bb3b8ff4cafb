"""How far apart two correct results of one program may be: from its own arithmetic.

Sums of float32 are added in any order. Before a layer in few bits that may move an activation to the next
code now and then. How much codes matter, a model tells itself: its outputs with activations rounded, as the
twins have them, beside those with the same weights and activations left alone (`rounding_effect`). A backend
that rounds where the twins do is off by single codes, a fraction of that effect. One that does not is off by
about as much as the effect.

The largest distance on 15 random models of every operation, 256 samples each, as a share of the effect, which
was measured on others (benchmarks/backend_distances.py):

    rounds where the twins do      onnxruntime int8 0.02, bfloat16 2e-4; OpenVINO bfloat16 2e-4
    does not                       OpenVINO int8 1.9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor

from megalith.export.backends.base import LoadSettings, ModelSource
from megalith.export.backends.checks import recorded_checks
from megalith.export.backends.conformance.findings import unit_of
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.backends.kernels.description import dense_description, outputs_by_task
from megalith.export.backends.kernels.native import NativeBackend
from megalith.export.backends.programs import products_of
from megalith.export.program import DENSE, EMBEDDED, Linear
from megalith.ops.dense.operations import DenseOperation
from megalith.ops.dense.program import DenseProgram
from megalith.ops.dense.quantise import QuantisedWeight

FLOAT32 = 2e-5
"""Of a probability, or of the largest of other numbers: of sums in any order."""
AS_DEFINED, ITS_OWN = 0.5, 4.0
"""Times the effect of rounding, for backends that round where the twins do and for others. The first leaves
room for several codes at once, the second for twice what was measured."""
_SAMPLES = 256

_effects: WeakKeyDictionary[ModelSource, dict[str, float]] = WeakKeyDictionary()


def usual_tolerance(model: ModelSource, *, rounds_as_defined: bool) -> dict[str, float]:
    """By output: of a probability as such, of a number relative to the largest."""
    share = AS_DEFINED if rounds_as_defined else ITS_OWN
    return {name: FLOAT32 + share * effect for name, effect in rounding_effect(model).items()}


def rounding_effect(model: ModelSource) -> dict[str, float]:
    """The most that rounded activations change an output, over samples of the model and drawn ones."""
    if model not in _effects:
        program = model.manifest.program
        found = dict.fromkeys((task.name for task in program.outputs), 0.0)
        if any(isinstance(each, Linear) and each.precision != "float32" for each in program.operations):
            for request in _requests(model):
                for name, effect in _effect(model, request).items():
                    found[name] = max(found[name], effect)
        _effects[model] = found
    return _effects[model]


def _requests(model: ModelSource) -> list[ScoreRequest]:
    """Requests to the dense part: the samples that the model came with, and drawn ones."""
    from megalith.export.backends.conformance.requests import RequestMaker

    found = [RequestMaker(model, "dense").request(_SAMPLES)]
    recorded = recorded_checks(model)
    if recorded is not None:
        request = recorded[0]
        if model.manifest.program.inputs.get(EMBEDDED):
            lookups = NativeBackend().load(model, "lookups", LoadSettings(options={"rows": "file"}))
            request = request._replace(embedded=lookups.run(request)[EMBEDDED])
            lookups.close()
        found.append(request)
    return found


def _effect(model: ModelSource, request: ScoreRequest) -> dict[str, float]:
    program = model.manifest.program
    described = dense_description(program, model.weights(), products_of(model))
    alone = replace(described, operations=tuple(map(_not_rounded, described.operations)))
    given: Mapping[str, Tensor | None] = {DENSE: request.dense, EMBEDDED: request.embedded}
    inputs = [given[name] for name, columns in program.inputs.items() if columns or given[name] is not None]
    held = [each for each in inputs if each is not None]
    rounded, plain = (outputs_by_task(program, DenseProgram(each).run(*held)) for each in (described, alone))
    return {
        name: float((truth - plain[name]).abs().max()) / unit_of(name, truth, program)
        for name, truth in rounded.items()
    }


def _not_rounded(operation: DenseOperation) -> DenseOperation:
    """A layer with its weight as it is rounded, and activations left alone."""
    if operation.kind != "linear" or operation.precision == "float32":
        return operation
    weight = operation.weight
    plain = weight.dequantised() if isinstance(weight, QuantisedWeight) else weight
    return replace(operation, weight=plain, precision="float32")
