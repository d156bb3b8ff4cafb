"""How far predictions of a kind have been from measurements: 80% intervals, and the error between two plans.

validation/left_out.json has the error of every measured step when constants are fitted without its model
(`python benchmarks/fit_stacks.py` writes it, a test holds the two together). A prediction takes the errors of
steps like it: same stack, generation of devices, width of the products, sharding, experts or none. Where too
few were measured it takes those of a wider kind, widened, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import exp, expm1
from pathlib import Path
from typing import NamedTuple

from megalith.cost.operators import QUANTISED
from megalith.explore.placement import devices_needed
from megalith.explore.plan import Plan

FILE = Path(__file__).parent / "validation" / "left_out.json"
COVERAGE = 0.8
ENOUGH = 6
"""Steps from which on a kind has an interval of its own."""
PRIOR_ROWS = 3
"""How many steps the wider kind's error counts as beside a kind's own."""
UNSEEN_LEVEL = 0.10
"""Added for each level of the cluster beyond nodes of one zone: nothing measured there is public."""
UNMEASURED = 0.25
"""Half-width where not even a wider kind was measured."""


class StepKind(NamedTuple):
    """What tells steps apart whose errors differ."""

    stack: str
    generation: str
    narrow: bool
    """Products in FP8, MXFP8 or NVFP4."""
    sharded: bool
    """Weights or gradients in parts: ZeRO-2, ZeRO-3, hybrid."""
    experts: bool


class LeftOutStep(NamedTuple):
    """A measured step, and the logarithm of predicted over measured by constants fitted without its model."""

    id: str
    kind: StepKind
    model: str
    error: float


@dataclass(frozen=True, slots=True)
class ErrorBand:
    """80% of predictions like this one were within `half_width`, of its logarithm."""

    half_width: float
    plan_error: float
    """The same of the ratio between two plans of one model on one device: what both get wrong cancels."""
    basis: str
    """Which measured steps say so."""

    def around(self, seconds: float) -> tuple[float, float]:
        """The interval around a predicted step."""
        return seconds * exp(-self.half_width), seconds * exp(self.half_width)


def band_of(plan: Plan) -> ErrorBand:
    """The errors to expect of a plan's prediction."""
    devices = devices_needed(plan.parallel)
    levels = range(len(plan.cluster.levels))
    crossed = next((index for index in levels if plan.cluster.devices_within(index) >= devices), levels[-1])
    own = plan.stack.profile.errors
    if own is not None:
        unseen = max(0, crossed - 1)
        apart = "models left out" if own.left_out else "one model, widened"
        width = own.half_width + UNSEEN_LEVEL * unseen
        return ErrorBand(width, width, f"{own.steps} steps that {plan.stack.name} was fitted on, {apart}")
    return _band(kind_of(plan), max(0, crossed - 1))


def kind_of(plan: Plan) -> StepKind:
    """The kind of step that a plan makes."""
    return StepKind(
        plan.stack.fitted_as,
        plan.cluster.device.generation,
        plan.precision in QUANTISED,
        plan.sharding in ("zero2", "zero3", "hybrid"),
        plan.transformer.experts > 0,
    )


def left_out_errors() -> dict[str, float]:
    """Relative error of each shipped step by constants fitted without its model."""
    return {step.id: expm1(step.error) for step in left_out_steps()}


@lru_cache(maxsize=1)
def left_out_steps() -> tuple[LeftOutStep, ...]:
    """The shipped steps, as `benchmarks/fit_stacks.py` wrote them."""
    if not FILE.exists():
        return ()
    return tuple(
        LeftOutStep(row["id"], StepKind(*row["kind"]), row["model"], row["error"])
        for row in json.loads(FILE.read_text(encoding="utf-8"))["steps"]
    )


@lru_cache(maxsize=1024)
def _band(kind: StepKind, unseen_levels: int) -> ErrorBand:
    steps = left_out_steps()
    width, basis = UNMEASURED, "no measured step is like it"
    wider: float | None = None
    # From the widest kind to the narrowest: each narrower one replaces what it has enough steps for.
    for name, factor, alike in _widening(kind):
        errors = sorted(abs(step.error) for step in steps if alike(step.kind))
        if not errors:
            continue
        own = _quantile(errors)
        if wider is not None:
            own = (len(errors) * own + PRIOR_ROWS * wider) / (len(errors) + PRIOR_ROWS)
        wider = own
        if len(errors) >= ENOUGH or factor == 1.0:
            width = factor * own
            basis = f"{len(errors)} measured steps{name}"
    if unseen_levels:
        width += UNSEEN_LEVEL * unseen_levels
        basis += f"; nothing measured crosses {unseen_levels} of the cluster's levels"
    return ErrorBand(width, _plan_error(kind), basis)


def _widening(kind: StepKind) -> tuple[tuple[str, float, Callable[[StepKind], bool]], ...]:
    """(what it is called, how much wider the interval is taken, whether a step is of it), widest first."""
    experts = "with experts" if kind.experts else "of dense models"
    sharding = "fully sharded" if kind.sharded else "not fully sharded"
    width = "FP8" if kind.narrow else "16 bits"
    return (
        (f" {experts} on other software and devices", 1.5, lambda one: one.experts == kind.experts),
        (
            f" {experts} on {kind.generation} devices, other software",
            1.3,
            lambda one: (one.experts, one.generation) == (kind.experts, kind.generation),
        ),
        (
            f" {experts} by {kind.stack}, other devices or settings",
            1.2,
            lambda one: (one.experts, one.stack) == (kind.experts, kind.stack),
        ),
        (
            f" {experts} by {kind.stack} on {kind.generation}, {sharding}",
            1.1,
            lambda one: one._replace(narrow=kind.narrow) == kind,
        ),
        (
            f" {experts} by {kind.stack} on {kind.generation}, {sharding}, {width}",
            1.0,
            lambda one: one == kind,
        ),
    )


@lru_cache(maxsize=256)
def _plan_error(kind: StepKind) -> float:
    """80% quantile of the difference between the errors of two steps of one model, stack and device."""
    steps = left_out_steps()
    alike = [step for step in steps if (step.kind.stack, step.kind.experts) == (kind.stack, kind.experts)]
    for listed in (alike, [step for step in steps if step.kind.experts == kind.experts]):
        gaps = sorted(
            abs(first.error - second.error)
            for first, second in combinations(listed, 2)
            if first.model == second.model and first.kind == second.kind
        )
        if len(gaps) >= ENOUGH:
            return _quantile(gaps)
    return UNMEASURED


def _quantile(ordered: list[float]) -> float:
    """The value that 80% of a sorted list do not pass."""
    at = COVERAGE * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
