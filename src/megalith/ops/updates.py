"""Optimizer updates of touched embedding rows in plain torch, in place.

Each takes the stored weight, the rows and their summed gradients, and writes every touched row exactly once.
Arithmetic is float32 whatever the weight's type; the result is rounded to the nearest stored value, or at
random (`rounding.py`) where the step asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from megalith.ops.lookup import RowGradients
from megalith.ops.rounding import round_at_random


class Step(NamedTuple):
    """The settings of one table's optimizer for one step; the order is that of csrc/embedding.h."""

    kind: int
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


class Halfway(NamedTuple):
    """Touched rows between the halves of a step whose optimizer looks at whole rows."""

    rows: Tensor
    current: Tensor
    """The weights in float32."""
    direction: Tensor
    """What the step goes along."""


NUM_SUMS = {"rowwise_adagrad": 1, "rowwise_adam": 1, "lamb": 2, "lars": 2}
"""Optimizers that look at whole rows, and the sums of squares that each takes over a row: of what the step
goes along and, if two, of the weights."""


def update_rows_(
    kind: str, weight: Tensor, first: Tensor, second: Tensor, touched: RowGradients, step: Step, seed: int
) -> None:
    """One step of the optimizer `kind` on the touched rows."""
    if kind in NUM_SUMS:
        halfway, sums = begin_rows_(kind, weight, first, second, touched, step)
        finish_rows_(kind, weight, first, second, halfway, sums, weight.shape[1], step, seed)
        return
    current = weight[touched.rows].float()
    gradients = _decayed(_clipped(touched.gradients, step), current, step)
    updated = _UPDATES[kind](current, first, second, touched.rows, gradients, step)
    _write(weight, touched.rows, updated, step, seed)


def begin_rows_(
    kind: str, weight: Tensor, first: Tensor, second: Tensor, touched: RowGradients, step: Step
) -> tuple[Halfway, Tensor]:
    """The first half of a step on some columns of rows: sums of squares over these, [rows, sums]."""
    rows = touched.rows
    current = weight[rows].float()
    gradients = _clipped(touched.gradients, step)
    if kind == "lamb":
        # Adam's direction plus decay.
        mean = first[rows] * step.beta1 + gradients * step.rest1
        square = second[rows] * step.beta2 + gradients * gradients * step.rest2
        first[rows], second[rows] = mean, square
        adam = mean / step.first_correction / ((square / step.second_correction).sqrt() + step.eps)
        direction = adam + current * step.weight_decay
    else:
        direction = _decayed(gradients, current, step)
    squared = [direction, current][: NUM_SUMS[kind]]
    sums = torch.stack([(one * one).sum(dim=1) for one in squared], dim=1)
    return Halfway(rows, current, direction), sums


def finish_rows_(
    kind: str,
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    halfway: Halfway,
    sums: Tensor,
    columns: int,
    step: Step,
    seed: int,
) -> None:
    """The second half, given sums over all `columns` of the rows."""
    updated = _FINISHES[kind](halfway, first, second, sums, columns, step)
    _write(weight, halfway.rows, updated, step, seed)


def _clipped(gradients: Tensor, step: Step) -> Tensor:
    return gradients.clamp(-step.max_gradient, step.max_gradient) if step.max_gradient > 0 else gradients


def _decayed(gradients: Tensor, current: Tensor, step: Step) -> Tensor:
    return gradients + current * step.weight_decay if step.weight_decay else gradients


def _write(weight: Tensor, rows: Tensor, updated: Tensor, step: Step, seed: int) -> None:
    if step.stochastic_rounding and weight.dtype != torch.float32:
        weight[rows] = round_at_random(updated, weight.dtype, rows, seed)
    else:
        weight[rows] = updated.to(weight.dtype)


def _sgd(current: Tensor, _: Tensor, __: Tensor, ___: Tensor, gradients: Tensor, step: Step) -> Tensor:
    return current - gradients * step.lr


def _adagrad(
    current: Tensor, total: Tensor, _: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    sums = total[rows] + gradients * gradients
    total[rows] = sums
    return current - gradients * step.lr / (sums.sqrt() + step.eps)


def _adam(
    current: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """Moments of rows that a step does not touch stay as they are, as in torch.optim.SparseAdam."""
    mean = first[rows] * step.beta1 + gradients * step.rest1
    square = second[rows] * step.beta2 + gradients * gradients * step.rest2
    first[rows], second[rows] = mean, square
    scale = (square / step.second_correction).sqrt() + step.eps
    return current - mean * (step.lr / step.first_correction) / scale


def _rowwise_adagrad(
    halfway: Halfway, total: Tensor, _: Tensor, sums: Tensor, columns: int, step: Step
) -> Tensor:
    """One sum for each row, of the mean square of its gradient."""
    totals = total[halfway.rows] + sums[:, 0] / columns
    total[halfway.rows] = totals
    return halfway.current - halfway.direction * (step.lr / (totals.sqrt() + step.eps)).unsqueeze(1)


def _rowwise_adam(
    halfway: Halfway, first: Tensor, second: Tensor, sums: Tensor, columns: int, step: Step
) -> Tensor:
    """Adam with one second moment for each row, of the mean square of its gradient."""
    rows = halfway.rows
    mean = first[rows] * step.beta1 + halfway.direction * step.rest1
    square = second[rows] * step.beta2 + sums[:, 0] / columns * step.rest2
    first[rows], second[rows] = mean, square
    scale = ((square / step.second_correction).sqrt() + step.eps).unsqueeze(1)
    return halfway.current - mean * (step.lr / step.first_correction) / scale


def _lamb(halfway: Halfway, _: Tensor, __: Tensor, sums: Tensor, ___: int, step: Step) -> Tensor:
    """Adam's direction, its length in proportion to the row's (arXiv 1904.00962, row by row)."""
    ratio, _both = _trust(sums)
    return halfway.current - halfway.direction * (step.lr * ratio).unsqueeze(1)


def _lars(halfway: Halfway, momentum: Tensor, _: Tensor, sums: Tensor, __: int, step: Step) -> Tensor:
    """Momentum with a rate in proportion to the row's length (arXiv 1708.03888); `eps` is the coefficient."""
    ratio, both = _trust(sums)
    rate = step.lr * torch.where(both, step.eps * ratio, 1.0)
    change = momentum[halfway.rows] * step.beta1 + halfway.direction * rate.unsqueeze(1)
    momentum[halfway.rows] = change
    return halfway.current - change


def _trust(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The row's length over its update's, 1 where one of them is 0, and where neither is."""
    lengths = sums.sqrt()
    both = (lengths > 0).all(dim=1)
    return torch.where(both, lengths[:, 1] / lengths[:, 0], 1.0), both


_UPDATES = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}
_FINISHES = {"rowwise_adagrad": _rowwise_adagrad, "rowwise_adam": _rowwise_adam, "lamb": _lamb, "lars": _lars}
