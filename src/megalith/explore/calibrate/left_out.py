"""Fits without one model each: what a profile says of models that it has not seen.

A fit from scratch for every model would take minutes. Near the fit of all steps errors are nearly linear in
the constants, so the fit without a model is found in that linear picture, and the model's steps are then
predicted for good with the constants found.
"""

from __future__ import annotations

import numpy as np

from megalith.explore.calibrate.fit import StepFit, Values, Vector

_PASSES = 3


def left_out_errors(fit: StepFit, values: Values) -> Vector:
    """Logarithm of predicted over measured of every step, by constants fitted without its model."""
    errors, columns = fit.jacobian(values)
    found = np.zeros(len(errors))
    models = [(fit.plans[step.id].stack.fitted_as, step.model) for step in fit.steps]
    for model in sorted(set(models)):
        keep = np.array([one != model for one in models])
        without = fit_without(fit, values, errors, columns, keep)
        steps = [step for step, kept in zip(fit.steps, keep, strict=True) if not kept]
        found[~keep] = fit.errors(without, steps)
    return found


def fit_without(
    fit: StepFit,
    values: Values,
    errors: Vector,
    columns: Vector,
    keep: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Values:
    """The constants that the steps to keep alone would give, from errors linear around `values`."""
    start, there = fit.coordinates(values), values
    for _ in range(_PASSES):
        linear = errors + columns @ (fit.coordinates(there) - start)
        there = fit.solve(there, linear, columns, keep)
    return there
