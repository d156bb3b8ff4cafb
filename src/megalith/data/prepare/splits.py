"""Which rows are held out for validation: a function of the seed and the row's number, or the last rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ValidRule:
    """Rows `random`ly chosen by number, or from row `tail_start` on when that is given."""

    fraction: float
    seed: int = 0
    tail_start: int | None = None

    def mask(self, first_row: int, num_rows: int) -> NDArray[np.bool_] | None:
        """Which of these rows are validation rows; None where no row ever is."""
        if self.fraction == 0:
            return None
        rows = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
        if self.tail_start is not None:
            return rows >= self.tail_start
        return _mix(rows + _mix(np.array([self.seed % 2**64], np.uint64))) < np.uint64(
            int(self.fraction * 2**64)
        )


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 of each value; arithmetic wraps around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
