"""The rows of a window as flat arrays, column after column."""

from __future__ import annotations

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
