"""Ids of requests, taken apart and put together: some features, some samples, several requests as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from megalith.export.backends.inputs import Bags


def select_bags(bags: Bags, positions: Sequence[int] | None, first: int, last: int) -> Bags:
    """Of some features, in that order, the samples `first` up to `last`; None is all features."""
    if positions is None and first == 0 and last == bags.batch:
        return bags
    batch, offsets, values = bags.batch, bags.offsets.numpy(), bags.values.numpy()
    if positions is None:
        positions = range((len(offsets) - 1) // batch if batch else 0)
    starts = offsets[:-1].reshape(-1, batch) if batch else offsets[:0].reshape(0, 0)
    pieces, counts = [values[:0]], []
    for position in positions:
        row = starts[position]
        begin = position * batch
        pieces.append(values[row[first] if first < batch else offsets[begin + batch] : offsets[begin + last]])
        counts.append(np.diff(offsets[begin + first : begin + last + 1]))
    return _bags(pieces, counts, last - first)


def join_bags(given: Sequence[Bags]) -> Bags:
    """Ids of several requests as if they were one, its samples those of all in their order."""
    if len(given) == 1:
        return given[0]
    features = max(((len(bags.offsets) - 1) // bags.batch for bags in given if bags.batch), default=0)
    whole = [bags for bags in given if bags.batch]
    arrays = [(bags.values.numpy(), bags.offsets.numpy(), bags.batch) for bags in whole]
    pieces, counts = [given[0].values.numpy()[:0]], []
    for feature in range(features):
        for values, offsets, batch in arrays:
            begin, end = feature * batch, (feature + 1) * batch
            pieces.append(values[offsets[begin] : offsets[end]])
            counts.append(np.diff(offsets[begin : end + 1]))
    return _bags(pieces, counts, sum(bags.batch for bags in given))


def _bags(pieces: list[np.ndarray], counts: list[np.ndarray], batch: int) -> Bags:
    flat = np.concatenate(counts) if counts else np.empty(0, np.int64)
    offsets = np.zeros(len(flat) + 1, dtype=np.int64)
    np.cumsum(flat, out=offsets[1:])
    return Bags(torch.from_numpy(np.concatenate(pieces)), torch.from_numpy(offsets), batch)
