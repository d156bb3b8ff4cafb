"""Cuts a window's columns into batches, and joins the pieces of a batch that spans two windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from megalith.core.schema import FeatureSpec
from megalith.data.batch import Batch
from megalith.data.loader.columns import WindowColumns


def cut(columns: WindowColumns, features: Sequence[FeatureSpec], bounds: Sequence[int]) -> list[Batch]:
    """The rows between consecutive `bounds`, each as a batch."""
    make = _BagCutter(columns, features).cut if columns.bags else _cut_one_hot
    return [make(columns, start, stop) for start, stop in pairwise(bounds)]


def join(pieces: Sequence[Batch], num_features: int) -> Batch:
    """One batch of the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    lengths = [torch.diff(piece.offsets).view(num_features, piece.batch_size) for piece in pieces]
    slices = [
        piece.values[
            piece.offsets[feature * piece.batch_size] : piece.offsets[(feature + 1) * piece.batch_size]
        ]
        for feature in range(num_features)
        for piece in pieces
    ]
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    times = [piece.event_times for piece in pieces if piece.event_times is not None]
    return Batch(
        dense=torch.cat([piece.dense for piece in pieces]),
        values=torch.cat(slices) if slices else torch.empty(0, dtype=torch.int64),
        offsets=_offsets(torch.cat(lengths, dim=1)),
        labels=torch.cat([piece.labels for piece in pieces]),
        weights=torch.cat(weights) if weights else None,
        event_times=torch.cat(times) if times else None,
    )


def empty_batch(num_dense: int, weighted: bool, timed: bool) -> Batch:
    """A batch of no rows, for a rank whose rows end one step before the others'."""
    nothing = torch.empty(0, dtype=torch.float32)
    return Batch(
        dense=torch.empty((0, num_dense), dtype=torch.float32),
        values=torch.empty(0, dtype=torch.int64),
        offsets=torch.zeros(1, dtype=torch.int64),
        labels=nothing,
        weights=nothing if weighted else None,
        event_times=torch.empty(0, dtype=torch.int64) if timed else None,
    )


def _cut_one_hot(columns: WindowColumns, start: int, stop: int) -> Batch:
    ids = columns.ids[:, start:stop]
    values = np.empty(ids.shape, np.int64)
    values[...] = ids
    return _batch(columns, start, stop, torch.from_numpy(values.reshape(-1)), one_hot_offsets(values.size))


class _BagCutter:
    """Cuts windows with multi-hot features: where each row's ids begin is worked out once for a window."""

    def __init__(self, columns: WindowColumns, features: Sequence[FeatureSpec]) -> None:
        one_hot, multi_hot = iter(columns.ids), iter(columns.bags)
        self._features = [
            (next(multi_hot).values if feature.multi_hot else next(one_hot)) for feature in features
        ]
        bags = iter(columns.bags)
        self._lengths = np.ones((len(features), columns.rows), np.int64)
        for position, feature in enumerate(features):
            if feature.multi_hot:
                self._lengths[position] = next(bags).lengths
        self._begins = np.zeros((len(features), columns.rows + 1), np.int64)
        np.cumsum(self._lengths, axis=1, out=self._begins[:, 1:])

    def cut(self, columns: WindowColumns, start: int, stop: int) -> Batch:
        slices = [
            values[begins[start] : begins[stop]]
            for values, begins in zip(self._features, self._begins, strict=True)
        ]
        values = np.concatenate(slices, dtype=np.int64)
        lengths = torch.from_numpy(self._lengths[:, start:stop].reshape(-1))
        return _batch(columns, start, stop, torch.from_numpy(values), _offsets(lengths))


def _batch(columns: WindowColumns, start: int, stop: int, values: Tensor, offsets: Tensor) -> Batch:
    # Copies, so that a batch that is kept does not keep its whole window in memory.
    weights = None if columns.weights is None else torch.from_numpy(columns.weights[start:stop].copy())
    times = None if columns.times is None else torch.from_numpy(columns.times[start:stop].copy())
    dense = np.ascontiguousarray(columns.dense[:, start:stop].T)
    return Batch(
        dense=torch.from_numpy(dense),
        values=values,
        offsets=offsets,
        labels=torch.from_numpy(columns.labels[start:stop].copy()),
        weights=weights,
        event_times=times,
    )


@lru_cache(maxsize=8)
def one_hot_offsets(count: int) -> Tensor:
    """0, 1, ..., count: shared by all batches of one size, and so never written to."""
    return torch.arange(count + 1, dtype=torch.int64)


def _offsets(lengths: Tensor) -> Tensor:
    offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths.reshape(-1), 0, out=offsets[1:])
    return offsets
