"""`Batch`: what the loader yields and a model reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of samples.

    `values` holds the ids of all features, feature-major: bag f * batch + b covers
    values[offsets[f * batch + b] : offsets[f * batch + b + 1]].
    """

    dense: Tensor
    """float32 [batch, num_dense]"""
    values: Tensor
    """int64 [N]"""
    offsets: Tensor
    """int64 [features * batch + 1]"""
    labels: Tensor
    """float32 [batch]"""
    weights: Tensor | None = None
    """float32 [batch], the weight of each sample in the loss, or None for 1"""
    event_times: Tensor | None = None
    """int64 [batch], when each sample happened, in seconds since 1970; None where the data does not say"""

    @property
    def batch_size(self) -> int:
        """Samples."""
        return len(self.labels)

    @property
    def num_features(self) -> int:
        """Categorical features."""
        return (len(self.offsets) - 1) // max(self.batch_size, 1)

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        weights = None if self.weights is None else self.weights.to(device)
        times = None if self.event_times is None else self.event_times.to(device)
        return Batch(
            self.dense.to(device),
            self.values.to(device),
            self.offsets.to(device),
            self.labels.to(device),
            weights,
            times,
        )
