"""A profile for a user's own runs: `megalith explore calibrate MINE.csv --out my-stack.yaml`.

    profile, report = calibrate(Path("mine.jsonl"), name="my-stack")

The constants of the nearest shipped stack are fitted again to the user's steps, held near the priors of all
stacks. Steps of one model are predicted by a fit without them, so that the report says what to expect of
models that were not measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from megalith.core.errors import DataError
from megalith.explore.calibrate.fit import StepFit, Values, Vector, stack_constants
from megalith.explore.calibrate.left_out import left_out_errors
from megalith.explore.stacks import StackProfile, load_stack
from megalith.explore.stacks.profile import MOST_CONSTANTS, StackConstants, StackErrors
from megalith.explore.validation.measurements import MeasuredStep, read_steps
from megalith.explore.validation.report import ErrorSummary

LEAST_STEPS = 3
_FITTED = ("products", "attention", "memory", "overlap", "kernel_seconds", "scale_loss")
"""The constants of a profile whose base sets fewer."""


@dataclass(frozen=True, slots=True)
class CalibratedStep:
    """One of the user's steps, and its error before and after."""

    id: str
    model: str
    measured_seconds: float
    before: float
    """Relative error by the base profile."""
    fitted: float
    left_out: float | None
    """By constants fitted without its model; None where there is one model alone."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What a fit brought."""

    stack: str
    base: str
    steps: tuple[CalibratedStep, ...]
    constants: dict[str, float]
    before: ErrorSummary
    fitted: ErrorSummary
    left_out: ErrorSummary | None

    def to_dict(self) -> dict[str, Any]:
        """What `explore calibrate --json` prints."""
        return asdict(self)


def calibrate(path: Path, name: str, base: str | None = None) -> tuple[StackProfile, CalibrationReport]:
    """Fits a profile to the steps of a file, beginning with the stack `base`, or the one that most of them
    name; returns it with its report."""
    steps = [step for step in read_steps(path) if not step.out_of_memory]
    if len(steps) < LEAST_STEPS:
        raise DataError(
            f"{path} has {len(steps)} steps that ran; a profile needs at least {LEAST_STEPS}: add rows."
        )
    source = base or Counter(step.stack for step in steps).most_common(1)[0][0]
    steps = [_renamed(step, source) for step in steps]
    stack = load_stack(source)
    names = list(stack.profile.constants.given())
    names += [one for one in _FITTED if one not in names][: MOST_CONSTANTS - len(names)]
    fit = StepFit(steps, stack_constants([source], names))
    before = fit.errors(fit.start())
    values = fit.run()
    fitted = fit.errors(values)
    models = {step.model for step in steps}
    apart = left_out_errors(fit, values) if len(models) > 1 else None
    profile = _profile(stack.profile, name, path, values, steps, apart if apart is not None else fitted)
    return profile, _report(name, source, steps, profile, before, fitted, apart)


def _renamed(step: MeasuredStep, stack: str) -> MeasuredStep:
    training = step.job.training.model_copy(update={"stack": stack})
    return replace(step, stack=stack, job=step.job.model_copy(update={"training": training}))


def _profile(
    base: StackProfile, name: str, path: Path, values: Values, steps: list[MeasuredStep], errors: Vector
) -> StackProfile:
    constants = {constant: float(f"{value:.4g}") for (_, constant), value in values.items()}
    assert len(constants) <= MOST_CONSTANTS
    absolute = sorted(float(error) for error in np.abs(errors))
    held_out = len({step.model for step in steps}) > 1
    return base.model_copy(
        update={
            "name": name,
            "title": f"fitted to {path.name}",
            "measured": f"{len(steps)} steps of {path.name}, over {base.name}",
            "constants": StackConstants.model_validate(constants),
            "errors": StackErrors(
                steps=len(steps),
                half_width=float(np.quantile(absolute, 0.8)) * (1.0 if held_out else 1.5),
                left_out=held_out,
            ),
        }
    )


def _report(
    name: str,
    base: str,
    steps: list[MeasuredStep],
    profile: StackProfile,
    before: Vector,
    fitted: Vector,
    apart: Vector | None,
) -> CalibrationReport:
    def relative(errors: Vector) -> list[float]:
        return [float(error) for error in np.expm1(errors)]

    rows = tuple(
        CalibratedStep(
            step.id,
            step.model,
            step.value,
            float(np.expm1(before[index])),
            float(np.expm1(fitted[index])),
            float(np.expm1(apart[index])) if apart is not None else None,
        )
        for index, step in enumerate(steps)
    )
    return CalibrationReport(
        name,
        base,
        rows,
        profile.constants.given(),
        ErrorSummary.of(relative(before)),
        ErrorSummary.of(relative(fitted)),
        ErrorSummary.of(relative(apart)) if apart is not None else None,
    )
