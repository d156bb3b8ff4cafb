"""`Samples`: logits, labels and weights as float64 arrays, whatever they came as."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ArrayLike = Any
"""A torch tensor on any device, a numpy array or a list of numbers."""

# Probabilities of exactly 0 or 1 would make a wrong prediction cost infinity.
_SMALLEST = 1e-15


@dataclass(frozen=True)
class Samples:
    """Predictions with their labels; the weight of a sample is 1 unless given."""

    logits: Floats
    labels: Floats
    weights: Floats

    @cached_property
    def probabilities(self) -> Floats:
        """The predicted click probabilities."""
        return sigmoid(self.logits)

    @property
    def losses(self) -> Floats:
        """The log loss of each sample, softplus(x) - x * label, without cancellation at large logits."""
        x = self.logits
        return np.maximum(x, 0.0) - x * self.labels + np.log1p(np.exp(-np.abs(x)))


def samples_of(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> Samples:
    """`predictions` are logits, or probabilities where so stated (held 1e-15 away from 0 and 1)."""
    scores, targets = _floats(predictions), _floats(labels)
    if probabilities:
        held = np.clip(scores, _SMALLEST, 1.0 - _SMALLEST)
        scores = np.log(held) - np.log1p(-held)
    sizes = np.ones_like(targets) if weights is None else _floats(weights)
    if not scores.shape == targets.shape == sizes.shape:
        raise ValueError(f"{scores.size} predictions, {targets.size} labels and {sizes.size} weights differ")
    return Samples(scores, targets, sizes)


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow at either end."""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _floats(values: ArrayLike) -> Floats:
    if hasattr(values, "detach"):
        # bfloat16 has no numpy type, so torch does the widening.
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64).reshape(-1)
