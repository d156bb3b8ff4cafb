"""Requests as every side can take them: ids of all features for every sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megalith.core.errors import DataError
from megalith.data.batch import Batch
from megalith.export.backends.inputs import ScoreRequest


def request_of(batch: Batch) -> ScoreRequest:
    """A batch of all features."""
    lengths = batch.offsets.diff().to(torch.int32)
    shape = (-1, batch.batch_size) if batch.batch_size else (0, 0)
    return ScoreRequest(dense=batch.dense, values=batch.values, lengths=lengths.view(shape))


def batch_of(request: ScoreRequest) -> Batch:
    """A request as a trained model reads it; without labels."""
    assert request.values is not None
    assert request.lengths is not None
    samples = request.lengths.shape[1]
    offsets = torch.zeros(request.lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(request.lengths.reshape(-1), 0, out=offsets[1:])
    dense = torch.empty(samples, 0) if request.dense is None else request.dense
    return Batch(dense, request.values.long(), offsets, torch.zeros(samples))


def tiled(request: ScoreRequest, features: Sequence[str], user: Sequence[str]) -> ScoreRequest:
    """A request with the ids of the user for every sample, where they were sent once."""
    if request.user_lengths is None:
        return request
    lengths, values = request.lengths, request.values
    if lengths is None or values is None or request.user_values is None:
        raise DataError("A recorded request has 'user_lengths' alone; record requests that were answered.")
    samples = lengths.shape[1]
    own = iter(_cut(values, lengths.sum(dim=1)))
    once = iter(_cut(request.user_values, request.user_lengths[:, 0]))
    rows, counts = iter(lengths), iter(request.user_lengths[:, 0])
    ids: list[Tensor] = [values[:0]]
    sizes: list[Tensor] = []
    for name in features:
        if name in user:
            ids.append(next(once).to(values.dtype).repeat(samples))
            sizes.append(next(counts).expand(samples))
        else:
            ids.append(next(own))
            sizes.append(next(rows))
    return ScoreRequest(dense=request.dense, values=torch.cat(ids), lengths=torch.stack(sizes).contiguous())


def _cut(values: Tensor, sizes: Tensor) -> list[Tensor]:
    return list(torch.split(values, sizes.tolist()))
