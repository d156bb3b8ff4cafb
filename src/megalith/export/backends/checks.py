"""Samples that a model carries with the outputs it gives for them: `checks.safetensors`.

dense, values, lengths       a request, as `ScoreRequest` names its parts
output/TASK                  what the model answers
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from megalith.export.backends.base import ModelSource, Outputs
from megalith.export.backends.inputs import ScoreRequest

_OUTPUT = "output/"


def recorded_checks(model: ModelSource) -> tuple[ScoreRequest, Outputs] | None:
    """The request and its outputs; None where a model came without."""
    found: Mapping[str, Tensor] = model.checks()
    outputs = {
        name.removeprefix(_OUTPUT): tensor for name, tensor in found.items() if name.startswith(_OUTPUT)
    }
    if not outputs:
        return None
    return ScoreRequest(**{name: found.get(name) for name in ScoreRequest._fields}), outputs
