"""Gradients of a loss that was multiplied by a factor, as `torch.amp.GradScaler` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.ops.embedding.descriptors import OutputGradients


class ScalesLoss(Protocol):
    """What is asked of a `GradScaler`."""

    def get_scale(self) -> float:
        """The factor of losses now."""


LossScale = float | ScalesLoss | None
"""The factor itself, whoever knows it, or None: losses are as they are, and nothing is checked."""


def unscaled(
    loss_scale: float | ScalesLoss, pooled: Tensor | None, sequences: Sequence[Tensor | None]
) -> OutputGradients:
    """The gradients of the loss itself, in float32 and in memory of their own."""
    scale = loss_scale if isinstance(loss_scale, int | float) else loss_scale.get_scale()
    if not scale > 0:
        raise ConfigError(f"loss_scale is {scale}; give what losses are multiplied by, a number above 0.")
    factor = 1.0 / float(scale)

    def divided(given: Tensor | None) -> Tensor | None:
        return None if given is None else given.float() * factor

    return OutputGradients(divided(pooled), [divided(given) for given in sequences])


def own_copy(pooled: Tensor | None, sequences: Sequence[Tensor | None]) -> OutputGradients:
    """The gradients as they are, in float32 and in memory of their own."""

    def copied(given: Tensor | None) -> Tensor | None:
        return None if given is None else given.to(torch.float32, copy=True)

    return OutputGradients(copied(pooled), [copied(given) for given in sequences])


def are_finite(gradients: OutputGradients) -> bool:
    """Whether no gradient is infinite or not a number."""
    parts = (gradients.pooled, *gradients.sequences)
    return all(bool(torch.isfinite(part).all()) for part in parts if part is not None)
