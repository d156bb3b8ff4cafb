"""Exact optimizers of embedding rows: settings, and the state each keeps for a table.

A step reads and writes only the rows that the batch touched, each exactly once, in the pass that adds up
their gradients. What each computes is written down in `megalith.ops.optimizer.steps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from megalith.core.config import Config
from megalith.core.errors import ConfigError, nearest
from megalith.core.schema import TableSpec
from megalith.ops.optimizer.steps import OPTIMIZER_KINDS, OptimizerStep

StateShape = Literal["none", "row", "full"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class _RowOptimizer(Config):
    lr: float = Field(default=0.01, ge=0)
    """The learning rate, before the schedule."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, added to the gradient of the rows that take a step."""
    rows: Literal["touched", "all"] = "touched"
    """Which rows take a step: those that a batch touches, or all, as with torch's dense optimizers. Then
    decay is an L2 penalty over whole tables, and moments of rows that are not touched fade. Rows take the
    steps they missed when they are next needed: a step costs no more than what it touches missed."""
    max_gradient: float | None = Field(default=None, gt=0)
    """Every element of a row's summed gradient is clamped to this."""

    first_state: ClassVar[StateShape] = "none"
    second_state: ClassVar[StateShape] = "none"

    def at(self, step: int, lr_factor: float, stochastic_rounding: bool) -> OptimizerStep:
        """The settings of step number `step`, counted from 1."""
        beta1, beta2 = self._betas()
        return OptimizerStep(
            kind=OPTIMIZER_KINDS.index(getattr(self, "kind")),  # noqa: B009  (every subclass has one)
            lr=self.lr * lr_factor,
            eps=self._eps(),
            beta1=beta1,
            beta2=beta2,
            weight_decay=self.weight_decay,
            max_gradient=self.max_gradient or 0.0,
            first_correction=1 - beta1**step,
            second_correction=1 - beta2**step,
            stochastic_rounding=float(stochastic_rounding),
            rest1=1 - beta1,
            rest2=1 - beta2,
        )

    def _betas(self) -> tuple[float, float]:
        return 0.0, 0.0

    def _eps(self) -> float:
        return 0.0


class SGD(_RowOptimizer):
    """weight -= lr * gradient."""

    kind: Literal["sgd"] = "sgd"


class AdaGrad(_RowOptimizer):
    """AdaGrad with a sum of squares for every element."""

    kind: Literal["adagrad"] = "adagrad"
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the sum of squares."""
    first_state: ClassVar[StateShape] = "full"

    def _eps(self) -> float:
        return self.eps


class RowWiseAdaGrad(AdaGrad):
    """AdaGrad with one number of state for each row: 1/dim of AdaGrad's memory."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"  # type: ignore[assignment]
    first_state: ClassVar[StateShape] = "row"


class Adam(_RowOptimizer):
    """Adam on the rows a step touches; moments of all others stay as they are."""

    kind: Literal["adam"] = "adam"
    lr: float = Field(default=1e-3, ge=0)
    """The learning rate, before the schedule."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """What is left of the first and second moments after a step."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    first_state: ClassVar[StateShape] = "full"
    second_state: ClassVar[StateShape] = "full"

    def _betas(self) -> tuple[float, float]:
        return self.betas

    def _eps(self) -> float:
        return self.eps


class RowWiseAdam(Adam):
    """Adam with one second moment for each row (also known as partial row-wise Adam)."""

    kind: Literal["rowwise_adam"] = "rowwise_adam"  # type: ignore[assignment]
    second_state: ClassVar[StateShape] = "row"


class LAMB(Adam):
    """Adam's direction, its length in proportion to the row's; decay is added to the direction."""

    kind: Literal["lamb"] = "lamb"  # type: ignore[assignment]


class LARS(_RowOptimizer):
    """Momentum with a rate in proportion to the row's length."""

    kind: Literal["lars"] = "lars"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """What is left of the last step's direction."""
    trust: float = Field(default=1e-3, gt=0)
    """The trust coefficient: the rate is lr times this, times the row's length over its gradient's."""
    first_state: ClassVar[StateShape] = "full"

    def _betas(self) -> tuple[float, float]:
        return self.momentum, 0.0

    def _eps(self) -> float:
        return self.trust


RowOptimizer = Annotated[
    SGD | AdaGrad | RowWiseAdaGrad | Adam | RowWiseAdam | LAMB | LARS, Field(discriminator="kind")
]


def optimizer_of_each(
    tables: Sequence[TableSpec], default: RowOptimizer, own: Mapping[str, RowOptimizer]
) -> list[RowOptimizer]:
    """The optimizer of each table: its own, by name, or the default."""
    names = [table.name for table in tables]
    for name in own:
        if name not in names:
            raise ConfigError(f"table_optimizers names '{name}', which is no table; {nearest(name, names)}")
    return [own.get(name, default) for name in names]


class StepSettings:
    """The settings of a step as the operators take them, a row for each table."""

    def __init__(self, optimizers: Sequence[RowOptimizer]) -> None:
        self._optimizers = optimizers
        self._distinct = tuple(dict.fromkeys(optimizers))
        self._settings: list[OptimizerStep] = []
        self._tensor = torch.empty(0)

    def at(self, step: int, lr_factor: float, stochastic_rounding: bool) -> Tensor:
        """Those of step number `step`; made anew only when one of them has changed."""
        now = [optimizer.at(step, lr_factor, stochastic_rounding) for optimizer in self._distinct]
        if now != self._settings:
            by_optimizer = dict(zip(self._distinct, now, strict=True))
            self._settings = now
            self._tensor = torch.tensor([by_optimizer[optimizer] for optimizer in self._optimizers])
        return self._tensor
