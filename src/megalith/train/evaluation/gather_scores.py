"""What ranks tell each other in a step beside the model's own traffic: scores for the metrics, requests to
stop. Both are small and go in the same order on every rank."""

from __future__ import annotations

import signal
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from megalith.comm.peer_lost import peer_errors
from megalith.comm.ranks import Ranks
from megalith.data.batch import Batch
from megalith.data.loader import even_slice


class Scored(NamedTuple):
    """The samples of a whole batch, as the model scored them."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    weights: Tensor | None


def scored_by_all(
    ranks: Ranks, batch: Batch, loss: Tensor, logits: Tensor, global_batch: int
) -> Scored | None:
    """The scores of all ranks' slices of a batch, in its order, on the first rank; None on the others."""
    if ranks.world_size == 1:
        return Scored(loss, logits, batch.labels, batch.weights)
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
    return Scored(gathered[0, heads].sum(), logits, labels, weights[0] if weights else None)


def agree_on_signal(ranks: Ranks, requested: str | None) -> str | None:
    """The signal that any rank was sent, so that all stop at the same step."""
    if ranks.world_size == 1:
        return requested
    number = torch.tensor(signal.Signals[requested].value if requested else 0)
    with peer_errors():
        dist.all_reduce(number, op=dist.ReduceOp.MAX, group=ranks.group)
    return signal.Signals(int(number)).name if number else None
