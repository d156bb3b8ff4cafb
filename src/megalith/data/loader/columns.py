"""The rows of a window as flat arrays, column after column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BagColumn:
    """A multi-hot column: the ids of all rows, row after row, and how many each row has."""

    values: Array
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowColumns:
    """The rows of a window, column after column."""

    dense: npt.NDArray[np.float32]
    """[num_dense, rows]"""
    labels: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32] | None
    ids: Array
    """[one-hot features, rows], int32 where every id fits"""
    bags: tuple[BagColumn, ...]
    """One for each multi-hot feature."""
    times: npt.NDArray[np.int64] | None = None
    """Event times, where the data has them."""

    @property
    def rows(self) -> int:
        """Rows of the window, or of the part of it that was asked for."""
        return len(self.labels)


def rows_of(columns: WindowColumns, start: int, stop: int) -> WindowColumns:
    """Rows [start, stop), without a copy."""
    if (start, stop) == (0, columns.rows):
        return columns
    bags = []
    for bag in columns.bags:
        begin = int(bag.lengths[:start].sum())
        lengths = bag.lengths[start:stop]
        bags.append(BagColumn(bag.values[begin : begin + int(lengths.sum())], lengths))
    return WindowColumns(
        columns.dense[:, start:stop],
        columns.labels[start:stop],
        None if columns.weights is None else columns.weights[start:stop],
        columns.ids[:, start:stop],
        tuple(bags),
        None if columns.times is None else columns.times[start:stop],
    )


def join_columns(parts: Sequence[WindowColumns], order: npt.NDArray[np.int64] | None) -> WindowColumns:
    """The rows of all parts in `order`, which may leave some out; None takes all as they stand."""

    def joined(columns: Sequence[Array | None]) -> Array | None:
        there = [column for column in columns if column is not None]
        if not there:
            return None
        column = there[0] if len(there) == 1 else np.concatenate(there)
        return column if order is None else column[order]

    def rows(matrices: Sequence[Array]) -> Array:
        if len(matrices) == 1 and order is None:
            return matrices[0]
        count = sum(matrix.shape[1] for matrix in matrices) if order is None else len(order)
        # Column by column, so that nothing is held twice.
        out = np.empty((len(matrices[0]), count), matrices[0].dtype)
        for position in range(len(out)):
            out[position] = joined([matrix[position] for matrix in matrices])
        return out

    labels = joined([part.labels for part in parts])
    assert labels is not None
    bags = []
    for several in zip(*(part.bags for part in parts), strict=True):
        values = np.concatenate([bag.values for bag in several])
        lengths = np.concatenate([bag.lengths for bag in several])
        bags.append(BagColumn(values, lengths) if order is None else permute_bags(values, lengths, order))
    return WindowColumns(
        rows([part.dense for part in parts]),
        labels,
        joined([part.weights for part in parts]),
        rows([part.ids for part in parts]),
        tuple(bags),
        joined([part.times for part in parts]),
    )


def permute_bags(values: Array, lengths: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> BagColumn:
    """The bags in another order.

    >>> permute_bags(np.array([5, 6, 7]), np.array([1, 0, 2]), np.array([2, 0, 1])).values.tolist()
    [6, 7, 5]
    """
    starts = np.cumsum(lengths) - lengths
    new_lengths = lengths[order]
    new_starts = np.cumsum(new_lengths) - new_lengths
    # Position i of the result, in bag b, comes from i - new_starts[b] + starts[order[b]].
    source = np.repeat(starts[order] - new_starts, new_lengths)
    source += np.arange(len(source))
    return BagColumn(values[source], new_lengths)
