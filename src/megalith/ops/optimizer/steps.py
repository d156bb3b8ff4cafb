"""Optimizer updates of touched embedding rows in plain torch, in place.

Each takes the stored weight, the rows and their summed gradients, and writes every touched row exactly once.
Arithmetic is float32 whatever the weight's type; the result is rounded to the nearest stored value, or at
random (`stochastic_rounding.py`) where the step asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.optimizer.row_gradients import RowGradients
from megalith.ops.optimizer.stochastic_rounding import RowRounding, round_at_random

OPTIMIZER_KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "lamb", "lars")
NUM_ROW_NORMS = {"rowwise_adagrad": 1, "rowwise_adam": 1, "lamb": 2, "lars": 2}
"""Optimizers that look at whole rows, and the squared norms that each takes of a row: of what the step goes
along and, if two, of the weights."""


class OptimizerStep(NamedTuple):
    """The settings of one table's optimizer for one step; the order is that of csrc/optimizer/step.h."""

    kind: int
    """Position in OPTIMIZER_KINDS."""
    lr: float
    eps: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    weight_decay: float = 0.0
    max_gradient: float = 0.0
    """Every element of a row's summed gradient is clamped to this; 0 is off."""
    first_correction: float = 1.0
    second_correction: float = 1.0
    stochastic_rounding: float = 0.0
    rest1: float = 1.0
    """1 - beta1, taken in float64: float32 would get it wrong by far more than an ulp."""
    rest2: float = 1.0

    @property
    def optimizer(self) -> str:
        """The name of the optimizer, one of OPTIMIZER_KINDS."""
        return OPTIMIZER_KINDS[int(self.kind)]


class PhysicalRows(NamedTuple):
    """The stored rows that kernels read and write, and what their optimizer keeps of them.

    Kernels run over physical rows; whoever owns them says which row an id has. In a dense table the id is the
    row.
    """

    weight: Tensor
    """[rows, dim]"""
    first: Tensor
    """float32: [rows, dim], [rows] for one number a row, or empty"""
    second: Tensor
    """As `first`."""
    ids: Tensor | None = None
    """int64 [rows]: the id of each row, where an id is not its row."""


class PartialStep(NamedTuple):
    """Touched rows between the halves of a step whose optimizer looks at whole rows."""

    rows: Tensor
    current: Tensor
    """The weights in float32."""
    direction: Tensor
    """What the step goes along."""


def update_rows_(
    table: PhysicalRows, touched: RowGradients, step: OptimizerStep, rounding: RowRounding
) -> None:
    """One step of the optimizer on the touched rows."""
    if step.optimizer in NUM_ROW_NORMS:
        partial, norms = begin_rows_(table, touched, step)
        finish_rows_(table, partial, norms, table.weight.shape[1], step, rounding)
        return
    current = table.weight[touched.rows].float()
    gradients = _decayed(_clipped(touched.gradients, step), current, step)
    updated = _UPDATES[step.optimizer](current, table.first, table.second, touched.rows, gradients, step)
    _write(table, touched.rows, updated, step, rounding)


def begin_rows_(
    table: PhysicalRows, touched: RowGradients, step: OptimizerStep
) -> tuple[PartialStep, Tensor]:
    """The first half of a step on some columns of rows, and squared row norms over these, [rows, norms]."""
    weight, first, second, _ = table
    rows = touched.rows
    current = weight[rows].float()
    gradients = _clipped(touched.gradients, step)
    if step.optimizer == "lamb":
        # Adam's direction plus decay.
        mean = first[rows] * step.beta1 + gradients * step.rest1
        square = second[rows] * step.beta2 + gradients * gradients * step.rest2
        first[rows], second[rows] = mean, square
        adam = mean / step.first_correction / ((square / step.second_correction).sqrt() + step.eps)
        direction = adam + current * step.weight_decay
    else:
        direction = _decayed(gradients, current, step)
    vectors = [direction, current][: NUM_ROW_NORMS[step.optimizer]]
    norms = torch.stack([(vector * vector).sum(dim=1) for vector in vectors], dim=1)
    return PartialStep(rows, current, direction), norms


def finish_rows_(
    table: PhysicalRows,
    partial: PartialStep,
    norms: Tensor,
    columns: int,
    step: OptimizerStep,
    rounding: RowRounding,
) -> None:
    """The second half, given squared norms over all `columns` of the rows."""
    updated = _FINISHES[step.optimizer](partial, table.first, table.second, norms, columns, step)
    _write(table, partial.rows, updated, step, rounding)


def _clipped(gradients: Tensor, step: OptimizerStep) -> Tensor:
    return gradients.clamp(-step.max_gradient, step.max_gradient) if step.max_gradient > 0 else gradients


def _decayed(gradients: Tensor, current: Tensor, step: OptimizerStep) -> Tensor:
    return gradients + current * step.weight_decay if step.weight_decay else gradients


def _write(
    table: PhysicalRows, rows: Tensor, updated: Tensor, step: OptimizerStep, rounding: RowRounding
) -> None:
    weight = table.weight
    if step.stochastic_rounding and weight.dtype != torch.float32:
        ids = rows if table.ids is None else table.ids[rows]
        weight[rows] = round_at_random(updated, weight.dtype, ids, rounding)
    else:
        weight[rows] = updated.to(weight.dtype)


def _sgd(
    current: Tensor, _: Tensor, __: Tensor, ___: Tensor, gradients: Tensor, step: OptimizerStep
) -> Tensor:
    return current - gradients * step.lr


def _adagrad(
    current: Tensor, total: Tensor, _: Tensor, rows: Tensor, gradients: Tensor, step: OptimizerStep
) -> Tensor:
    sums = total[rows] + gradients * gradients
    total[rows] = sums
    return current - gradients * step.lr / (sums.sqrt() + step.eps)


def _adam(
    current: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradients: Tensor, step: OptimizerStep
) -> Tensor:
    """Moments of rows that a step does not touch stay as they are, as in torch.optim.SparseAdam."""
    mean = first[rows] * step.beta1 + gradients * step.rest1
    square = second[rows] * step.beta2 + gradients * gradients * step.rest2
    first[rows], second[rows] = mean, square
    scale = (square / step.second_correction).sqrt() + step.eps
    return current - mean * (step.lr / step.first_correction) / scale


def _rowwise_adagrad(
    partial: PartialStep, total: Tensor, _: Tensor, norms: Tensor, columns: int, step: OptimizerStep
) -> Tensor:
    """One sum for each row, of the mean square of its gradient."""
    totals = total[partial.rows] + norms[:, 0] / columns
    total[partial.rows] = totals
    return partial.current - partial.direction * (step.lr / (totals.sqrt() + step.eps)).unsqueeze(1)


def _rowwise_adam(
    partial: PartialStep, first: Tensor, second: Tensor, norms: Tensor, columns: int, step: OptimizerStep
) -> Tensor:
    """Adam with one second moment for each row, of the mean square of its gradient."""
    rows = partial.rows
    mean = first[rows] * step.beta1 + partial.direction * step.rest1
    square = second[rows] * step.beta2 + norms[:, 0] / columns * step.rest2
    first[rows], second[rows] = mean, square
    scale = ((square / step.second_correction).sqrt() + step.eps).unsqueeze(1)
    return partial.current - mean * (step.lr / step.first_correction) / scale


def _lamb(
    partial: PartialStep, _: Tensor, __: Tensor, norms: Tensor, ___: int, step: OptimizerStep
) -> Tensor:
    """Adam's direction, its length in proportion to the row's (arXiv 1904.00962, row by row)."""
    ratio, _both = _trust(norms)
    return partial.current - partial.direction * (step.lr * ratio).unsqueeze(1)


def _lars(
    partial: PartialStep, momentum: Tensor, _: Tensor, norms: Tensor, __: int, step: OptimizerStep
) -> Tensor:
    """Momentum with a rate in proportion to the row's length (arXiv 1708.03888); `eps` is the coefficient."""
    ratio, both = _trust(norms)
    rate = step.lr * torch.where(both, step.eps * ratio, 1.0)
    change = momentum[partial.rows] * step.beta1 + partial.direction * rate.unsqueeze(1)
    momentum[partial.rows] = change
    return partial.current - change


def _trust(norms: Tensor) -> tuple[Tensor, Tensor]:
    """The row's length over its update's, 1 where one of them is 0, and where neither is."""
    lengths = norms.sqrt()
    both = (lengths > 0).all(dim=1)
    return torch.where(both, lengths[:, 1] / lengths[:, 0], 1.0), both


_UPDATES = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}
_FINISHES = {"rowwise_adagrad": _rowwise_adagrad, "rowwise_adam": _rowwise_adam, "lamb": _lamb, "lars": _lars}
