"""The ids of a batch as the stages hand them to each other: bags of different lengths behind each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class JaggedIds(NamedTuple):
    """The ids of a batch, feature-major: bag n = feature * batch + sample."""

    values: Tensor
    """As they travel: int32, or int64 where a table has more rows than that counts."""
    offsets: Tensor
    sample_weights: Tensor | None
    batch: int
    uniform_length: int
    """The number of ids of every bag, or -1 where bags differ."""
    times: Tensor | None = None
    """int64 [batch]: when each sample happened, where ids expire by it."""


class RoutedIds(NamedTuple):
    """What one worker is sent, stream by stream."""

    lengths: list[Tensor]
    """int32 [batch] each; empty where all bags of the batch are of one length and none is cut."""
    values: list[Tensor]
    sample_weights: list[Tensor]
    """Empty where there are none."""


class ReceivedIds(NamedTuple):
    """What this worker looks up, over the samples of all ranks, and what its own rank asked for."""

    values: Tensor
    offsets: Tensor
    sample_weights: Tensor | None
    batches: list[int]
    """Samples of each rank."""
    own: JaggedIds
    times: Tensor | None = None
    """int64: when each sample of all ranks happened, where ids expire by it."""


class UniformOffsets:
    """Offsets of bags that all have the same length; kept, since batches tend to be alike."""

    def __init__(self) -> None:
        self._offsets, self._length = torch.zeros(1, dtype=torch.int64), 1

    def __call__(self, num_bags: int, length: int) -> Tensor:
        """0, length, 2 * length, ..., num_bags * length"""
        if length != self._length or num_bags >= len(self._offsets):
            self._offsets, self._length = torch.arange(num_bags + 1) * length, length
        return self._offsets[: num_bags + 1]


def id_dtype(wide_ids: bool) -> torch.dtype:
    """The type in which ids travel."""
    return torch.int64 if wide_ids else torch.int32
