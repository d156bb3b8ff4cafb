"""How accurate predictions are: measured steps, replayed.

    report = validate()
    report.groups["FSDP H100"].mean, report.left_out["FSDP H100"].mean

The profiles of stacks were fitted on the steps that ship with the package. `left_out` are errors by constants
fitted without the step's model (left_out.yaml): what to expect of models that nothing was fitted on.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megalith.core.errors import DataError, MegalithError
from megalith.core.files import read_text
from megalith.explore.intervals import left_out_errors
from megalith.explore.predict import predict
from megalith.explore.prediction import Prediction
from megalith.explore.validation.bubbles import replay_bubble
from megalith.explore.validation.measurements import BUBBLES, MeasuredStep, read_steps, shipped_steps
from megalith.explore.validation.report import (
    MemoryCheck,
    ValidationBubble,
    ValidationReport,
    ValidationRow,
)


def validate(path: Path | None = None, stack: str | None = None) -> ValidationReport:
    """Every step predicted and compared; `path` names a file of the user's, `stack` a profile to predict its
    steps with in place of what they name."""
    steps = shipped_steps() if path is None else read_steps(path)
    if stack is not None:
        steps = [_with_stack(step, stack) for step in steps]
    return _report(steps, str(path or "shipped"), bubbles=path is None)


def _report(steps: Sequence[MeasuredStep], origin: str, bubbles: bool) -> ValidationReport:
    known, rows, memory = left_out_errors(), [], []
    for number, step in enumerate(steps, start=1):
        try:
            # It ran, so it fitted, whatever our count of memory says.
            prediction = predict(step.job, must_fit=False)
        except MegalithError as error:
            raise DataError(f"{origin}, row {number} ({step.id}): {error}") from error
        if step.out_of_memory or step.memory_gibibytes is not None:
            memory.append(
                MemoryCheck(
                    step.id,
                    step.stack,
                    None if step.out_of_memory else step.memory_gibibytes,
                    prediction.memory_bytes_per_device / 2**30,
                    prediction.fits,
                )
            )
        if not step.out_of_memory:
            rows.append(_row(step, prediction, known.get(step.id) if origin == "shipped" else None))
    published: tuple[ValidationBubble, ...] = ()
    if bubbles:
        text = read_text(BUBBLES, fix="install the package again", missing="install the package again")
        published = tuple(replay_bubble(row) for row in csv.DictReader(io.StringIO(text)))
    return ValidationReport(tuple(rows), tuple(memory), published)


def _row(step: MeasuredStep, prediction: Prediction, left_out: float | None) -> ValidationRow:
    predicted = metric_of(prediction, step.metric)
    ratio = step.value / predicted
    measured_seconds = prediction.step_seconds * (ratio if step.metric == "step_seconds" else 1 / ratio)
    low, high = prediction.interval
    return ValidationRow(
        id=step.id,
        source=step.source,
        stack=step.stack,
        family=step.family,
        model=step.model,
        metric=step.metric,
        measured=step.value,
        predicted=predicted,
        error=predicted / step.value - 1,
        left_out=left_out,
        interval=prediction.interval,
        inside=low <= measured_seconds <= high,
        fits=prediction.fits,
    )


def _with_stack(step: MeasuredStep, stack: str) -> MeasuredStep:
    training = step.job.training.model_copy(update={"stack": stack})
    return replace(step, stack=stack, job=step.job.model_copy(update={"training": training}))


def metric_of(prediction: Prediction, metric: str) -> float:
    """The field of a prediction that a row measured, such as step_seconds."""
    value = getattr(prediction, metric)
    assert isinstance(value, float)
    return value
