"""Exact optimizers of embedding rows: settings, and the state each keeps for a table.

A step reads and writes only the rows that the batch touched, each exactly once, in the pass that adds up
their gradients. What each computes is written down in `megalith.ops.updates`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from megalith.core.config import Config
from megalith.ops.embedding import KINDS
from megalith.ops.updates import Step

Shape = Literal["none", "row", "full"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class _RowOptimizer(Config):
    lr: float = Field(default=0.01, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, added to the gradient of the rows a step touches."""
    max_gradient: float | None = Field(default=None, gt=0)
    """Every element of a row's summed gradient is clamped to this."""

    first_state: ClassVar[Shape] = "none"
    second_state: ClassVar[Shape] = "none"

    def at(self, step: int, lr_factor: float, stochastic_rounding: bool) -> Step:
        """The settings of step number `step`, counted from 1."""
        beta1, beta2 = self._betas()
        return Step(
            kind=KINDS.index(getattr(self, "kind")),  # noqa: B009  (every subclass has one)
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
    first_state: ClassVar[Shape] = "full"

    def _eps(self) -> float:
        return self.eps


class RowWiseAdaGrad(AdaGrad):
    """AdaGrad with one number of state for each row: 1/dim of AdaGrad's memory."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"  # type: ignore[assignment]
    first_state: ClassVar[Shape] = "row"


class Adam(_RowOptimizer):
    """Adam on the rows a step touches; moments of all others stay as they are."""

    kind: Literal["adam"] = "adam"
    lr: float = Field(default=1e-3, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    first_state: ClassVar[Shape] = "full"
    second_state: ClassVar[Shape] = "full"

    def _betas(self) -> tuple[float, float]:
        return self.betas

    def _eps(self) -> float:
        return self.eps


class RowWiseAdam(Adam):
    """Adam with one second moment for each row (also known as partial row-wise Adam)."""

    kind: Literal["rowwise_adam"] = "rowwise_adam"  # type: ignore[assignment]
    second_state: ClassVar[Shape] = "row"


class LAMB(Adam):
    """Adam's direction, its length in proportion to the row's; decay is added to the direction."""

    kind: Literal["lamb"] = "lamb"  # type: ignore[assignment]


class LARS(_RowOptimizer):
    """Momentum with a rate in proportion to the row's length."""

    kind: Literal["lars"] = "lars"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    trust: float = Field(default=1e-3, gt=0)
    first_state: ClassVar[Shape] = "full"

    def _betas(self) -> tuple[float, float]:
        return self.momentum, 0.0

    def _eps(self) -> float:
        return self.trust


RowOptimizer = Annotated[
    SGD | AdaGrad | RowWiseAdaGrad | Adam | RowWiseAdam | LAMB | LARS, Field(discriminator="kind")
]
