"""Fits the constants of src/megalith/cost/calibration.yaml on every second row of the published measurements.

    python benchmarks/fit_cost_model.py ampere      a minute; prints constants and errors, writes nothing
    python benchmarks/fit_cost_model.py hopper

Levenberg-Marquardt on the logarithms of constants and of predicted over measured, errors above 1.5% counted
by their size and not its square, above 25% not at all: some rows have no explanation
(docs/decisions/0006-cost-model.md).
"""

from __future__ import annotations

import argparse
import sys
from math import exp, log

import numpy as np

from megalith.cost import calibration as constants
from megalith.cost import collectives, operators
from megalith.explore.candidates import candidate_plans, estimate_seconds
from megalith.explore.cost import compute, layers
from megalith.explore.plan import Plan
from megalith.explore.predict import SIMULATED, predict_plan
from megalith.explore.validation.measurements import (
    MeasurementRow,
    fitted_rows,
    group_of,
    job_of,
    read_rows,
)
from megalith.explore.validation.replay import metric_of

# What is fitted, and between which limits it means what its name says. The shares of peak FLOP/s and of
# memory bandwidth on ampere are not here: these rows cannot tell them apart, bubbles.csv can.
LIMITS = {
    "ampere": {
        "gemm_half_depth": (8, 400),
        "kernel_seconds": (1e-6, 3e-5),
        "inside_fraction": (0.3, 0.8),
        "inside_rank_exponent": (0.02, 1.2),
        "between_fraction": (0.4, 0.97),
        "micro_batch_seconds": (1e-5, 4e-3),
    },
    "hopper": {"gemm_fraction": (0.4, 0.9), "attention_fraction": (0.15, 0.9)},
}
LINEAR, LARGEST = 0.015, 0.25
_CACHES = (
    constants.calibration,
    collectives._rate,
    operators.gemm_seconds,
    compute.compute_seconds,
    layers.layer_seconds,
    layers.embedding_seconds,
    layers.head_seconds,
)


class Fit:
    """Rows of one generation, each with the plan that fills its blanks best."""

    def __init__(self, generation: str) -> None:
        self.generation = generation
        everything = read_rows()
        self.known = fitted_rows(everything)
        family = {"ampere": "a100", "hopper": "h100"}[generation]
        self.rows = [row for row in everything if row["gpu"].startswith(family)]
        self.fitted = [row for row in self.rows if row["id"] in self.known]
        self.names = list(LIMITS[generation])
        entries = constants._entries()
        entries.setdefault(generation, {})
        now = {**entries["default"], **entries[generation]}
        self.start = np.array([log(now[name]) for name in self.names])
        self.low, self.high = (
            np.array([log(LIMITS[generation][name][side]) for name in self.names]) for side in (0, 1)
        )
        self.plans: dict[str, Plan] = {}

    def use(self, values: np.ndarray) -> None:
        """Lets the cost model use these constants, given as logarithms."""
        figures = {name: exp(value) for name, value in zip(self.names, values, strict=True)}
        constants._entries()[self.generation].update(figures)
        for cache in _CACHES:
            cache.cache_clear()

    def choose_plans(self) -> None:
        """Finds the plan that each measured run most likely used, under the present constants."""
        for row in self.rows:
            ranked = sorted(candidate_plans(job_of(row)), key=estimate_seconds)[:SIMULATED]
            self.plans[row["id"]] = min(ranked, key=lambda plan: predict_plan(plan).step_seconds)

    def errors(self, rows: list[MeasurementRow]) -> np.ndarray:
        """Logarithm of predicted over measured seconds."""
        found = []
        for row in rows:
            ratio = log(metric_of(predict_plan(self.plans[row["id"]]), row["metric"]) / float(row["value"]))
            found.append(ratio if row["metric"] == "step_seconds" else -ratio)
        return np.array(found)

    def tried(self, values: np.ndarray) -> np.ndarray:
        """The errors of the fitted rows under these constants."""
        self.use(values)
        return self.errors(self.fitted)

    def run(self, rounds: int) -> np.ndarray:
        """Fits by damped least squares, outliers weighted down; returns the logarithms of the constants."""
        values = np.clip(self.start, self.low + 0.01, self.high - 0.01)
        errors, damping = self.tried(values), 1e-2
        for _ in range(rounds):
            jacobian = np.zeros((len(errors), len(values)))
            for index in range(len(values)):
                shift = 0.03 if values[index] + 0.03 <= self.high[index] else -0.03
                moved = values.copy()
                moved[index] += shift
                jacobian[:, index] = (self.tried(moved) - errors) / shift
            size = np.abs(errors)
            weights = np.where(size > LARGEST, 0.0, 1 / np.maximum(size, LINEAR))
            curvature = jacobian.T @ (weights[:, None] * jacobian)
            slope = jacobian.T @ (weights * errors)
            for _ in range(5):
                damped = curvature + damping * np.diag(np.diag(curvature) + 1e-3)
                move = np.clip(-np.linalg.solve(damped, slope), -0.3, 0.3)
                there = np.clip(values + move, self.low, self.high)
                found = self.tried(there)
                if _loss(found) < _loss(errors) - 1e-5:
                    values, errors, damping = there, found, damping / 3
                    break
                damping *= 4
            else:
                break
            print(f"loss {_loss(errors):.4f}", file=sys.stderr)
        self.use(values)
        return values


def _loss(errors: np.ndarray) -> float:
    size = np.minimum(np.abs(errors), LARGEST)
    return float(np.where(size < LINEAR, size**2 / (2 * LINEAR), size - LINEAR / 2).sum())


def main() -> None:
    """Fits a generation of devices and prints its constants and errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("generation", choices=sorted(LIMITS))
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    fit = Fit(arguments.generation)
    fit.choose_plans()
    values = fit.run(arguments.rounds)
    fit.choose_plans()
    for name, value in zip(fit.names, values, strict=True):
        print(f"  {name}: {exp(value):.3g}")
    for title, wanted in (("fitted", True), ("held out", False)):
        for group in sorted({group_of(row) for row in fit.rows}):
            rows = [row for row in fit.rows if (row["id"] in fit.known) == wanted and group_of(row) == group]
            if rows:
                mean = float(np.abs(np.expm1(fit.errors(rows))).mean())
                print(f"{title}, {group}: {len(rows)} rows, mean error {mean:.1%}")


if __name__ == "__main__":
    main()
