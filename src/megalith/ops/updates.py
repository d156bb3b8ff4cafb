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


def update_rows_(
    kind: str, weight: Tensor, first: Tensor, second: Tensor, touched: RowGradients, step: Step, seed: int
) -> None:
    """One step of the optimizer `kind` on the touched rows."""
    rows = touched.rows
    current = weight[rows].float()
    gradients = touched.gradients
    if step.max_gradient > 0:
        gradients = gradients.clamp(-step.max_gradient, step.max_gradient)
    if step.weight_decay and kind != "lamb":
        gradients = gradients + current * step.weight_decay
    updated = _UPDATES[kind](current, first, second, rows, gradients, step)
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


def _rowwise_adagrad(
    current: Tensor, total: Tensor, _: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """One sum for each row, of the mean square of its gradient."""
    sums = total[rows] + (gradients * gradients).mean(dim=1)
    total[rows] = sums
    return current - gradients * (step.lr / (sums.sqrt() + step.eps)).unsqueeze(1)


def _adam(
    current: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """Moments of rows that a step does not touch stay as they are, as in torch.optim.SparseAdam."""
    mean = first[rows] * step.beta1 + gradients * step.rest1
    square = second[rows] * step.beta2 + gradients * gradients * step.rest2
    first[rows], second[rows] = mean, square
    scale = (square / step.second_correction).sqrt() + step.eps
    return current - mean * (step.lr / step.first_correction) / scale


def _rowwise_adam(
    current: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """Adam with one second moment for each row, of the mean square of its gradient."""
    mean = first[rows] * step.beta1 + gradients * step.rest1
    square = second[rows] * step.beta2 + (gradients * gradients).mean(dim=1) * step.rest2
    first[rows], second[rows] = mean, square
    scale = ((square / step.second_correction).sqrt() + step.eps).unsqueeze(1)
    return current - mean * (step.lr / step.first_correction) / scale


def _lamb(
    current: Tensor, first: Tensor, second: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """Adam's direction plus decay, its length in proportion to the row's (arXiv 1904.00962, row by row)."""
    mean = first[rows] * step.beta1 + gradients * step.rest1
    square = second[rows] * step.beta2 + gradients * gradients * step.rest2
    first[rows], second[rows] = mean, square
    adam = mean / step.first_correction / ((square / step.second_correction).sqrt() + step.eps)
    update = adam + current * step.weight_decay
    return current - update * (step.lr * _trust(current, update)).unsqueeze(1)


def _lars(
    current: Tensor, momentum: Tensor, _: Tensor, rows: Tensor, gradients: Tensor, step: Step
) -> Tensor:
    """Momentum with a rate in proportion to the row's length (arXiv 1708.03888); `eps` is the coefficient."""
    ratio = _trust(current, gradients)
    rate = step.lr * torch.where(_both_nonzero(current, gradients), step.eps * ratio, 1.0)
    change = momentum[rows] * step.beta1 + gradients * rate.unsqueeze(1)
    momentum[rows] = change
    return current - change


def _both_nonzero(current: Tensor, update: Tensor) -> Tensor:
    return (current.norm(dim=1) > 0) & (update.norm(dim=1) > 0)


def _trust(current: Tensor, update: Tensor) -> Tensor:
    ratio = current.norm(dim=1) / update.norm(dim=1)
    return torch.where(_both_nonzero(current, update), ratio, 1.0)


_UPDATES = {
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise_adagrad,
    "adam": _adam,
    "rowwise_adam": _rowwise_adam,
    "lamb": _lamb,
    "lars": _lars,
}
