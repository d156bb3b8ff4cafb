"""Logits to the scores that files, frames and servers are given."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def scores_of(logits: Tensor) -> NDArray[np.float32]:
    """The probability that each logit stands for, whatever its place among the others.

    In double precision: `torch.sigmoid` rounds the last ones of a tensor otherwise than those before.
    """
    with np.errstate(over="ignore"):
        scores: NDArray[np.float32] = (1 / (1 + np.exp(-logits.double().numpy()))).astype(np.float32)
    return scores
