"""The scores of a training batch, gathered from the slices of all ranks for the training metrics."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.comm.ranks import Ranks
from megalith.data.batch import Batch
from megalith.data.loader import even_slice


class BatchScores(NamedTuple):
    """The samples of a whole batch, as the model scored them."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    weights: Tensor | None


def gather_scores(
    ranks: Ranks, batch: Batch, loss: Tensor, logits: Tensor, global_batch: int
) -> BatchScores | None:
    """The scores of all ranks' slices of a batch, in its order, on the first rank; None on the others."""
    if ranks.world_size == 1:
        return BatchScores(loss, logits, batch.labels, batch.weights)
    rows = [logits, batch.labels] if batch.weights is None else [logits, batch.labels, batch.weights]
    slices = [even_slice(global_batch, rank, ranks.world_size) for rank in range(ranks.world_size)]
    sizes = [1 + stop - start for start, stop in slices]
    # A rank's part of the loss goes ahead of its samples: one message for both.
    columns = torch.cat([loss.expand(len(rows), 1), torch.stack(rows)], dim=1)
    gathered = ranks.gather_columns(columns, sizes)
    if gathered is None:
        return None
    heads = [0, *accumulate(sizes)][:-1]
    samples = torch.ones(gathered.shape[1], dtype=torch.bool)
    samples[heads] = False
    logits, labels, *weights = gathered[:, samples]
    return BatchScores(gathered[0, heads].sum(), logits, labels, weights[0] if weights else None)
