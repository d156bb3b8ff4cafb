"""Exact optimizers of embedding rows: settings, the state each keeps for a table, and one step.

A step reads and writes only the rows that the batch touched, each exactly once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from megalith.core.config import Config
from megalith.core.schema import TableSpec
from megalith.ops import updates
from megalith.ops.lookup import RowGradients

State = dict[str, Tensor]


class _RowOptimizer(Config):
    lr: float = Field(default=0.01, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty, added to the gradient of the rows a step touches."""


class SGD(_RowOptimizer):
    """weight -= lr * gradient."""

    kind: Literal["sgd"] = "sgd"

    def new_state(self, table: TableSpec, device: torch.device) -> State:
        return {}

    def step(self, weight: Tensor, state: State, touched: RowGradients, step: int, lr: float) -> None:
        updates.sgd_(weight, touched, lr, self.weight_decay)


class AdaGrad(_RowOptimizer):
    """AdaGrad with a sum of squares for every element."""

    kind: Literal["adagrad"] = "adagrad"
    eps: float = Field(default=1e-8, gt=0)

    def new_state(self, table: TableSpec, device: torch.device) -> State:
        return {"sum": torch.zeros(table.rows, table.dim, device=device)}

    def step(self, weight: Tensor, state: State, touched: RowGradients, step: int, lr: float) -> None:
        updates.adagrad_(weight, state["sum"], touched, lr, self.eps, self.weight_decay)


class RowWiseAdaGrad(_RowOptimizer):
    """AdaGrad with one number of state for each row: 1/dim of AdaGrad's memory."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    eps: float = Field(default=1e-8, gt=0)

    def new_state(self, table: TableSpec, device: torch.device) -> State:
        return {"sum": torch.zeros(table.rows, device=device)}

    def step(self, weight: Tensor, state: State, touched: RowGradients, step: int, lr: float) -> None:
        updates.rowwise_adagrad_(weight, state["sum"], touched, lr, self.eps, self.weight_decay)


class Adam(_RowOptimizer):
    """Adam on the rows a step touches."""

    kind: Literal["adam"] = "adam"
    lr: float = Field(default=1e-3, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)

    def new_state(self, table: TableSpec, device: torch.device) -> State:
        shape = (table.rows, table.dim)
        return {"first": torch.zeros(shape, device=device), "second": torch.zeros(shape, device=device)}

    def step(self, weight: Tensor, state: State, touched: RowGradients, step: int, lr: float) -> None:
        updates.adam_(
            weight,
            state["first"],
            state["second"],
            touched,
            step,
            lr,
            *self.betas,
            self.eps,
            self.weight_decay,
        )


RowOptimizer = Annotated[SGD | AdaGrad | RowWiseAdaGrad | Adam, Field(discriminator="kind")]
