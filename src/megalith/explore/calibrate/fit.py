"""Constants of stacks and devices fitted to measured steps.

Damped least squares on the logarithm of predicted over measured, large errors counted by their size and not
its square, and every constant held near its prior (`stacks.PRIORS`, shared by all stacks). Rows of one
series, such as one model from 8 to 2,048 devices, say nearly the same thing: a series of n rows weighs as
sqrt(n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from megalith.core.errors import ConfigError
from megalith.explore.candidates import candidate_plans, estimate_seconds
from megalith.explore.plan import Plan
from megalith.explore.predict import SIMULATED, predict_plan
from megalith.explore.stacks import PRIORS, Stack, load_stack
from megalith.explore.stacks.profile import ConstantPrior, StackConstants
from megalith.explore.validation.measurements import MeasuredStep

Vector = NDArray[np.float64]
NOISE, LINEAR, LARGEST = 0.03, 0.01, 0.2
"""Scale of errors; the size up to which they count by their square; and the distance from the middle error of
their stack beyond which they do not count at all: some steps have no explanation, and must not bend the
rest."""


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One constant of a stack (or, for whoever fits devices too, of a device)."""

    owner: str
    name: str
    prior: ConstantPrior

    def to_value(self, coordinate: float) -> float:
        """The constant from the fit's coordinate."""
        value = exp(coordinate) if self.prior.logarithmic else coordinate
        return min(max(value, self.prior.low), self.prior.high)

    def to_coordinate(self, value: float) -> float:
        """What the fit moves: the logarithm, or the value where it may be 0."""
        return log(value) if self.prior.logarithmic else value


Values = dict[tuple[str, str], float]
"""(owner, constant) -> value."""


def stack_with(stack: Stack, values: Values) -> Stack:
    """The stack with fitted constants in place of its own."""
    given = {name: value for (owner, name), value in values.items() if owner in (stack.name, stack.fitted_as)}
    constants = {**stack.profile.constants.given(), **given}
    profile = stack.profile.model_copy(update={"constants": StackConstants.model_validate(constants)})
    return Stack(profile)


@dataclass
class StepFit:
    """Measured steps, the plan that each most likely ran, and the constants to fit."""

    steps: Sequence[MeasuredStep]
    constants: Sequence[FittedConstant]
    use: Callable[[Values], None] = lambda _: None
    """Called before predictions with other values: for constants that are not of a stack."""
    plans: dict[str, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = [step for step in self.steps if not step.out_of_memory]
        series = Counter(map(_series, self.steps))
        self.weights = np.array([series[_series(step)] ** -0.5 for step in self.steps])
        if not self.plans:
            self.choose_plans({})

    def choose_plans(self, values: Values) -> None:
        """Finds the plan that each measured run most likely used, under these constants."""
        self.use(values)
        stacks: dict[str, Stack] = {}
        for step in self.steps:
            plans = [self._with_values(plan, values, stacks) for plan in candidate_plans(step.job)]
            ranked = sorted(plans, key=estimate_seconds)[:SIMULATED]
            self.plans[step.id] = min(ranked, key=_seconds) if len(ranked) > 1 else ranked[0]

    def errors(self, values: Values, steps: Sequence[MeasuredStep] | None = None) -> Vector:
        """Logarithm of predicted over measured seconds."""
        self.use(values)
        stacks: dict[str, Stack] = {}
        return np.array(
            [
                _error(self._with_values(self.plans[step.id], values, stacks), step)
                for step in (self.steps if steps is None else steps)
            ]
        )

    def start(self) -> Values:
        """The constants as they are now: the profiles', else the priors."""
        values: Values = {}
        for constant in self.constants:
            given = _profile_constants(constant.owner)
            values[constant.owner, constant.name] = given.get(constant.name, constant.prior.value)
        return values

    def jacobian(self, values: Values) -> tuple[Vector, Vector]:
        """Errors, and how each moves with each constant's coordinate."""
        errors = self.errors(values)
        columns = np.zeros((len(self.steps), len(self.constants)))
        for index, constant in enumerate(self.constants):
            concerned = [
                number
                for number, step in enumerate(self.steps)
                if constant.owner in (step.stack, *_owners(self.plans[step.id]))
            ]
            if not concerned:
                continue
            moved, shift = self._moved(values, constant)
            found = self.errors(moved, [self.steps[number] for number in concerned])
            columns[concerned, index] = (found - errors[concerned]) / shift
        return errors, columns

    def run(self, values: Values | None = None, rounds: int = 8) -> Values:
        """Fits; plans are chosen again half-way."""
        values = dict(values or self.start())
        keep = np.ones(len(self.steps), dtype=bool)
        for number in range(rounds):
            if number == rounds // 2:
                self.choose_plans(values)
            errors, columns = self.jacobian(values)
            now = self.loss(errors, values)
            for step in (1.0, 0.5, 0.25, 0.1):
                tried = self.solve(values, errors, columns, keep, step)
                if self.loss(self.errors(tried), tried) < now - 1e-4:
                    values = tried
                    break
            else:
                if number > rounds // 2:
                    break
        return values

    def solve(
        self, values: Values, errors: Vector, columns: Vector, keep: NDArray[np.bool_], step: float = 1.0
    ) -> Values:
        """One step of least squares from `values` over the rows to keep."""
        size = np.maximum(np.abs(errors), LINEAR)
        weights = np.where(keep & ~self._unexplained(errors), self.weights / (NOISE * size), 0.0)
        at = self.coordinates(values)
        priors = np.array([one.to_coordinate(one.prior.value) for one in self.constants], dtype=float)
        stiffness = np.array([one.prior.spread**-2 for one in self.constants], dtype=float)
        curvature = columns.T @ (weights[:, None] * columns) + np.diag(stiffness)
        slope = columns.T @ (weights * errors) + stiffness * (at - priors)
        there = at - step * np.linalg.solve(curvature, slope)
        return {
            (one.owner, one.name): one.to_value(float(coordinate))
            for one, coordinate in zip(self.constants, there, strict=True)
        }

    def coordinates(self, values: Values) -> Vector:
        """What the fit moves, of these values."""
        return np.array([one.to_coordinate(values[one.owner, one.name]) for one in self.constants])

    def loss(self, errors: Vector, values: Values) -> float:
        """What the fit makes small."""
        size = np.minimum(np.abs(errors), np.abs(self._middles(errors)) + LARGEST)
        of_rows = np.where(size < LINEAR, size**2 / (2 * LINEAR), size - LINEAR / 2) * self.weights / NOISE
        of_priors = sum(
            ((one.to_coordinate(values[one.owner, one.name]) - one.to_coordinate(one.prior.value))
             / one.prior.spread) ** 2 / 2
            for one in self.constants
        )  # fmt: skip
        return float(of_rows.sum() + of_priors)

    def _middles(self, errors: Vector) -> Vector:
        """The middle error of each step's stack."""
        stacks = np.array([step.stack for step in self.steps])
        middles = np.zeros(len(errors))
        for stack in set(stacks):
            middles[stacks == stack] = np.median(errors[stacks == stack])
        return middles

    def _unexplained(self, errors: Vector) -> NDArray[np.bool_]:
        return np.abs(errors - self._middles(errors)) > LARGEST

    def _moved(self, values: Values, constant: FittedConstant) -> tuple[Values, float]:
        at = constant.to_coordinate(values[constant.owner, constant.name])
        shift = 0.03 if constant.prior.logarithmic else 0.2 * constant.prior.spread
        if constant.to_value(at + shift) <= constant.to_value(at):
            shift = -shift
        return {**values, (constant.owner, constant.name): constant.to_value(at + shift)}, shift

    def _with_values(self, plan: Plan, values: Values, stacks: dict[str, Stack]) -> Plan:
        name = plan.stack.name
        if name not in stacks:
            stacks[name] = stack_with(plan.stack, values)
        experts = plan.transformer.experts > 0
        software = stacks[name].constants(plan.cluster.device, plan.precision, experts)
        return replace(plan, stack=stacks[name], fabric=replace(plan.fabric, software=software))


def stack_constants(stacks: Sequence[str], names: Sequence[str] | None = None) -> list[FittedConstant]:
    """The constants that the profiles of these stacks set, or those named."""
    return [
        FittedConstant(stack, name, PRIORS[name])
        for stack in stacks
        for name in (names or _profile_constants(stack))
    ]


def _owners(plan: Plan) -> tuple[str, str]:
    """Whose constants a plan's time depends on beside its stack's own."""
    return plan.stack.fitted_as, plan.cluster.device.generation


def _profile_constants(owner: str) -> dict[str, float]:
    try:
        return load_stack(owner).profile.constants.given()
    except ConfigError:
        # A generation of devices, for whoever fits those too.
        return {}


def _series(step: MeasuredStep) -> tuple[str, str, str, str]:
    return step.stack, step.model, step.job.training.precision, step.job.cluster.device


def _seconds(plan: Plan) -> float:
    return predict_plan(plan, must_fit=False).step_seconds


def _error(plan: Plan, step: MeasuredStep) -> float:
    predicted = getattr(predict_plan(plan, must_fit=False), step.metric)
    ratio = log(predicted / step.value)
    return ratio if step.metric == "step_seconds" else -ratio
