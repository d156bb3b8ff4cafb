"""Held-out samples as the gate reads them: what the trained model makes of each batch goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.metrics import evaluate

KEPT_SAMPLES, KEPT_BYTES = 1 << 16, 256 << 20
"""What is kept in memory for costs of single tables and layers."""


class GateBatch(NamedTuple):
    """Some held-out samples."""

    dense: Tensor
    values: Tensor
    offsets: Tensor
    labels: Tensor
    weights: Tensor
    pooled: Tensor
    """Vectors that the trained tables give."""
    logits: Tensor
    """Of the trained model."""


class Quality(NamedTuple):
    """How good some logits are."""

    ne: float
    auc: float | None
    samples: int

    def loss(self, trained: Quality) -> float:
        """Share by which normalized entropy is higher than that of the trained model."""
        return self.ne / trained.ne - 1


def quality(logits: Tensor, labels: Tensor, weights: Tensor) -> Quality:
    """Of these samples; refuses those that have no normalized entropy."""
    found = evaluate(logits, labels, weights)
    if found["ne"] is None:
        raise DataError(
            "The samples of the gate are all clicks or all none; name another split with --split."
        )
    return Quality(float(found["ne"]), found["auc"], len(labels))


class KeptSamples(NamedTuple):
    """Samples in memory, with the vectors of trained and of frozen tables."""

    dense: Tensor
    labels: Tensor
    weights: Tensor
    pooled: Tensor
    frozen: Tensor
    logits: Tensor

    @staticmethod
    def of(parts: Iterable[KeptSamples]) -> KeptSamples:
        """All together."""
        return KeptSamples(*(torch.cat(each) for each in zip(*parts, strict=True)))


def room_for(columns: int) -> int:
    """Samples of so many columns of vectors that are kept."""
    return max(1, min(KEPT_SAMPLES, KEPT_BYTES // (8 * max(1, columns))))
