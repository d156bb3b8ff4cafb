"""Values inside a program on any backend: programs whose outputs are those values, column by column.

A backend gives outputs of one column each, so a value of many columns is cut into columns. What a backend
joins into one kernel it may compute apart when a value between is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megalith.export.backends.base import Backend, LoadSettings, ModelSource
from megalith.export.backends.inputs import ScoreRequest
from megalith.export.manifest import ModelManifest
from megalith.export.program import EMBEDDED, Columns, ModelProgram, Operation, ProgramOutput

_OUTPUTS = 2048
"""Most columns that one program gives."""


@dataclass(frozen=True, eq=False)
class ProgramModel:
    """A model with another program over the same weights; for dense parts."""

    manifest: ModelManifest
    dense: Mapping[str, Tensor]

    def table(self, name: str) -> Mapping[str, Tensor]:
        """Dense parts ask for none."""
        raise KeyError(name)

    def weights(self) -> Mapping[str, Tensor]:
        """Those of the model."""
        return self.dense

    def checks(self) -> Mapping[str, Tensor]:
        """None: outputs are other ones."""
        return {}


def program_values(
    backend: Backend,
    settings: LoadSettings,
    model: ModelSource,
    request: ScoreRequest,
    columns: Mapping[str, int],
) -> dict[str, Tensor]:
    """What every operation of a model gives, [samples, columns], by its name; `columns` counts them."""
    program = model.manifest.program
    made = {operation.output: columns[operation.output] for operation in program.operations}
    found: dict[str, list[Tensor]] = {name: [] for name in made}
    for group in _groups(made):
        values = _run(backend, settings, model, _showing(program, group), request)
        for (name, _), value in zip(group, values, strict=True):
            found[name].append(value)
    return {name: torch.stack(parts, dim=1) for name, parts in found.items() if parts}


def operation_value(
    backend: Backend,
    settings: LoadSettings,
    model: ModelSource,
    operation: Operation,
    inputs: Sequence[Tensor],
    columns: int,
) -> Tensor:
    """What one operation gives of these inputs, [samples, columns]."""
    names, operations, end = [], list[Operation](), 0
    for number, tensor in enumerate(inputs):
        names.append(f"input:{number}")
        last = end + tensor.shape[1]
        operations.append(Columns(inputs=(EMBEDDED,), output=names[-1], first=end, last=last))
        end = last
    alone = operation.model_copy(update={"inputs": tuple(names), "output": "result"})
    program = ModelProgram.model_construct(
        inputs={EMBEDDED: end}, operations=(*operations, alone), outputs=()
    )
    request = ScoreRequest(embedded=torch.cat(list(inputs), dim=1))
    parts = []
    for group in _groups({"result": columns}):
        parts += _run(backend, settings, model, _showing(program, group), request)
    return torch.stack(parts, dim=1)


def _groups(columns: Mapping[str, int]) -> Iterator[list[tuple[str, int]]]:
    """Names with the number of a column, as many as one program gives."""
    group: list[tuple[str, int]] = []
    for name, count in columns.items():
        for column in range(count):
            group.append((name, column))
            if len(group) == _OUTPUTS:
                yield group
                group = []
    if group:
        yield group


def _showing(program: ModelProgram, group: Sequence[tuple[str, int]]) -> ModelProgram:
    """The program with these columns as its outputs, up to the last operation that they need."""
    wanted = {name for name, _ in group}
    last = max(place for place, each in enumerate(program.operations) if each.output in wanted)
    shown = [
        Columns(inputs=(name,), output=f"column:{number}", first=column, last=column + 1)
        for number, (name, column) in enumerate(group)
    ]
    return ModelProgram(
        inputs=program.inputs,
        operations=(*program.operations[: last + 1], *shown),
        outputs=tuple(
            ProgramOutput(name=f"c{number}", value=each.output, kind="number")
            for number, each in enumerate(shown)
        ),
    )


def _run(
    backend: Backend,
    settings: LoadSettings,
    model: ModelSource,
    program: ModelProgram,
    request: ScoreRequest,
) -> list[Tensor]:
    source = ProgramModel(model.manifest.model_copy(update={"program": program}), model.weights())
    part = backend.load(source, "dense", settings)
    try:
        outputs = part.run(request)
        return [outputs[task.name].clone() for task in program.outputs]
    finally:
        part.close()
