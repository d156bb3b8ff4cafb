"""Requests cut and put together as requests: some samples of one, or several as one.

Whole models take a request as it came in one native call; what is cut or joined is made to look like one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megalith.export.backends.inputs import ScoreRequest


def samples_of(request: ScoreRequest, first: int, last: int) -> ScoreRequest | None:
    """Samples `first` up to `last`; None where lengths and values do not fit."""
    cut = _cut(request, first, last)
    if cut is None:
        return None
    pieces, lengths = cut
    dense = None if request.dense is None else request.dense[first:last]
    return request._replace(dense=dense, values=_joined(pieces), lengths=torch.from_numpy(lengths))


def joined_requests(requests: Sequence[ScoreRequest]) -> ScoreRequest | None:
    """All samples of some requests in their order; None where one of them does not fit together."""
    cuts = []
    for request in requests:
        cut = None if request.lengths is None else _cut(request, 0, request.lengths.shape[1])
        if cut is None:
            return None
        cuts.append(cut)
    pieces = [piece for feature in zip(*(cut[0] for cut in cuts), strict=True) for piece in feature]
    lengths = np.concatenate([cut[1] for cut in cuts], axis=1)
    given = [request.dense for request in requests if request.dense is not None]
    dense = torch.cat(given) if given else None
    return ScoreRequest(dense, _joined(pieces), torch.from_numpy(lengths))


def _cut(request: ScoreRequest, first: int, last: int) -> tuple[list[np.ndarray], np.ndarray] | None:
    """Of every feature the ids of some samples, and the lengths of these."""
    assert request.values is not None
    assert request.lengths is not None
    values, lengths = request.values.numpy(), request.lengths.numpy()
    if lengths.size and lengths.min() < 0:
        return None
    ends = lengths.sum(axis=1, dtype=np.int64).cumsum()
    if (int(ends[-1]) if len(ends) else 0) != len(values):
        return None
    batch = lengths.shape[1]
    begins = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    if first or last < batch:
        begins = begins + lengths[:, :first].sum(axis=1, dtype=np.int64)
        lengths = lengths[:, first:last]
        ends = begins + lengths.sum(axis=1, dtype=np.int64)
    bounds = zip(begins.tolist(), ends.tolist(), strict=True)
    return [values[begin:end] for begin, end in bounds], np.ascontiguousarray(lengths)


def _joined(pieces: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.empty(0, dtype=torch.int32)
