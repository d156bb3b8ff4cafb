"""A model as a program: it is run once on a few samples, and what torch computes is written down.

    program, weights = trace_model(learner.dense, num_dense, output_dim)

Every model of `megalith.models` can be traced, and one's own of the same operators; one without a kind is
refused in a sentence that names it and the module it is in. Dropout is gone, batch normalisation is in the
weights of the layer before it, and an activation is part of its layer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.export.interpret import run_program
from megalith.export.program import DENSE, EMBEDDED, Linear, ModelProgram, ProgramOutput
from megalith.export.tracing.operators import OPERATORS
from megalith.export.tracing.passes import Tidy, renamed
from megalith.export.tracing.recorder import Recorder, Value
from megalith.models.base import ClickModel

_SAMPLES, _OTHER_SAMPLES = 13, 29
"""Primes that are hardly ever a number of columns too."""
_TOLERANCE = 1e-4


class TracedModel(NamedTuple):
    """The dense part of a model as data."""

    program: ModelProgram
    weights: dict[str, Tensor]
    """By the names that the program gives them, float32."""


def trace_model(model: ClickModel, num_dense: int, output_dim: int) -> TracedModel:
    """The program of a model that reads so many numbers and columns of pooled vectors of each sample."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            traced = _traced(model, num_dense, output_dim)
            _compare(model, traced)
    finally:
        model.train(was_training)
    return traced


def _traced(model: ClickModel, num_dense: int, output_dim: int) -> TracedModel:
    recorder = Recorder(model, _SAMPLES, OPERATORS)
    dense, embedded = _inputs(_SAMPLES, num_dense, output_dim)
    recorder.name_tensor(dense, Value(DENSE, num_dense))
    recorder.name_tensor(embedded, Value(EMBEDDED, output_dim))
    with recorder.modules(), recorder:
        logits = model(dense, embedded)
    found = recorder.get(logits)
    if found is None or found.columns != 1:
        raise ConfigError(
            f"{type(model).__name__} gives {list(logits.shape)} for {_SAMPLES} samples, and not a logit of "
            "each; a model gives [batch]."
        )
    if found.name in (DENSE, EMBEDDED):
        raise ConfigError(f"{type(model).__name__} gives back what it reads; there is nothing to freeze.")
    tidy = Tidy(recorder.operations, recorder.weights, recorder.columns, found.name)
    operations = tidy.run()
    # A layer is known by the name of its weights, also where what follows is a part of it.
    names: dict[str, str] = {}
    for each in operations:
        stem = each.weight.removesuffix(":folded").removesuffix(".weight") if isinstance(each, Linear) else ""
        if stem and stem not in {DENSE, EMBEDDED, *names.values()}:
            names[each.output] = stem
    taken = {each.output for each in operations} - names.keys()
    names = {old: new for old, new in names.items() if new not in taken}
    program = ModelProgram(
        inputs={DENSE: num_dense, EMBEDDED: output_dim},
        operations=renamed(operations, names),
        outputs=(ProgramOutput(value=names.get(found.name, found.name)),),
    )
    return TracedModel(program, tidy.weights)


def _inputs(samples: int, num_dense: int, output_dim: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(samples)
    dense, embedded = (torch.randn(samples, width, generator=random) for width in (num_dense, output_dim))
    return dense, embedded


def _compare(model: ClickModel, traced: TracedModel) -> None:
    """Refuses a model that does not compute the same of other samples, or of other numbers of them."""
    inputs = traced.program.inputs
    dense, embedded = _inputs(_OTHER_SAMPLES, inputs[DENSE], inputs[EMBEDDED])
    ours = run_program(traced.program, traced.weights, dense, embedded)[:, 0]
    theirs = model(dense, embedded)
    if not torch.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
        raise ConfigError(
            f"{type(model).__name__} does not compute the same operations for every batch, as a frozen model "
            "must; leave out what is drawn at random, depends on other samples or on values in Python."
        )
