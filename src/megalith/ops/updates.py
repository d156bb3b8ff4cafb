"""Optimizer updates of touched embedding rows in plain torch, in place.

Each takes the stored weight, the rows and their summed gradients, and writes every touched row exactly once.
Arithmetic is float32 whatever the weight's type; the result is rounded to the nearest stored value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megalith.ops.lookup import RowGradients


def sgd_(weight: Tensor, touched: RowGradients, lr: float, weight_decay: float = 0.0) -> None:
    rows, current, gradients = _read(weight, touched, weight_decay)
    _write(weight, rows, current - lr * gradients)


def adagrad_(
    weight: Tensor, total: Tensor, touched: RowGradients, lr: float, eps: float, weight_decay: float = 0.0
) -> None:
    """AdaGrad with a sum of squares for every element; `total` is float32 of the weight's shape."""
    rows, current, gradients = _read(weight, touched, weight_decay)
    sums = total[rows] + gradients * gradients
    total[rows] = sums
    _write(weight, rows, current - lr * gradients / (sums.sqrt() + eps))


def rowwise_adagrad_(
    weight: Tensor, total: Tensor, touched: RowGradients, lr: float, eps: float, weight_decay: float = 0.0
) -> None:
    """AdaGrad with one sum for each row, of the mean square of its gradient; `total` is float32 [rows]."""
    rows, current, gradients = _read(weight, touched, weight_decay)
    sums = total[rows] + (gradients * gradients).mean(dim=1)
    total[rows] = sums
    _write(weight, rows, current - lr * gradients / (sums.sqrt() + eps).unsqueeze(1))


def adam_(
    weight: Tensor,
    first: Tensor,
    second: Tensor,
    touched: RowGradients,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
) -> None:
    """Adam on the touched rows; `step` counts all steps from 1 and sets the bias correction.

    Moments of rows that a step does not touch stay as they are, as in torch.optim.SparseAdam.
    """
    rows, current, gradients = _read(weight, touched, weight_decay)
    mean = first[rows] * beta1 + gradients * (1 - beta1)
    square = second[rows] * beta2 + gradients * gradients * (1 - beta2)
    first[rows], second[rows] = mean, square
    scale = lr / (1 - beta1**step)
    _write(weight, rows, current - scale * mean / ((square / (1 - beta2**step)).sqrt() + eps))


def _read(weight: Tensor, touched: RowGradients, weight_decay: float) -> tuple[Tensor, Tensor, Tensor]:
    current = weight[touched.rows].float()
    gradients = touched.gradients
    if weight_decay:
        gradients = torch.add(gradients, current, alpha=weight_decay)
    return touched.rows, current, gradients


def _write(weight: Tensor, rows: Tensor, updated: Tensor) -> None:
    weight[rows] = updated.to(weight.dtype)
