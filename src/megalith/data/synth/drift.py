"""Ids that rise, fall and enter as time passes.

A field's popularity ranks stay; what changes is the id that holds a rank. Over the whole stream a share
`drift` of the body's ranks changes its id once, each at a time of its own: half of them swap ids with another
rank (one id rises, one falls), half go to an id never seen before. The few ids above 2% of the rows keep
their ranks. Nothing depends on earlier rows, so any block can be made alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEADY_SHARE = 0.02
"""Ids above this share of the rows keep their rank."""


@dataclass(frozen=True, slots=True)
class RankChanges:
    """Who holds which of the first `body` ranks: old ids are 0..body-1, ids that enter follow them."""

    body: int
    swapped: NDArray[np.int64]
    """[pairs, 2]"""
    swap_times: NDArray[np.float64]
    entered: NDArray[np.int64]
    """Ranks taken over by new ids, in the order of their numbers."""
    enter_times: NDArray[np.float64]

    def holders(self, time: float) -> NDArray[np.int32]:
        """For each rank of the body the id that holds it at `time` (0 the start of the stream, 1 its end)."""
        holder = np.arange(self.body, dtype=np.int32)
        pairs = self.swapped[self.swap_times <= time]
        holder[pairs[:, 0]], holder[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
        new = np.flatnonzero(self.enter_times <= time)
        holder[self.entered[new]] = self.body + new
        return holder


def plan_changes(
    shares: NDArray[np.float64], drift: float, most_new: int, generator: np.random.Generator
) -> RankChanges:
    """Changes for a field whose first ranks have these shares of the rows; at most `most_new` ids enter."""
    free = generator.permutation(np.flatnonzero(shares < STEADY_SHARE))
    changing = free[: round(len(free) * drift)]
    swaps = len(changing) // 4
    # Partners come from the ranks that change, so that no rank changes twice.
    swapped = changing[: 2 * swaps].reshape(swaps, 2)
    entered = changing[2 * swaps :][:most_new]
    return RankChanges(len(shares), swapped, generator.random(swaps), entered, generator.random(len(entered)))
