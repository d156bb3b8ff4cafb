"""Which rows of an epoch each step of a rank reads: arithmetic alone, without reading any row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from megalith.data.loader.plan import ShuffleWindow, even_slice, rank_rows

Share = Literal["rows", "slices", "batches"]
"""How ranks divide the rows; `Loader` says what each means."""
RowRanges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class EpochSteps:
    """The steps of an epoch on one rank. Rows are counted in the order that the rank follows."""

    rows: int
    """Rows of the splits, over all ranks."""
    batch_size: int
    rank: int
    world_size: int
    share: Share
    drop_last: bool

    @property
    def order_rank(self) -> tuple[int, int]:
        """Rank and world size of the row order: ranks that cut batches follow the order of one process."""
        return (self.rank, self.world_size) if self.share == "rows" else (0, 1)

    @property
    def step_rows(self) -> int:
        """Rows of one step, those of other ranks' slices and batches included."""
        return self.batch_size * self.world_size if self.share == "batches" else self.batch_size

    @property
    def num_steps(self) -> int:
        """Steps of an epoch, the same on every rank."""
        _, world_size = self.order_rank
        if self.drop_last:
            return self.rows // world_size // self.step_rows
        return -(-rank_rows(self.rows, 0, world_size) // self.step_rows)

    @property
    def num_rows(self) -> int:
        """Rows in the steps of an epoch."""
        if self.drop_last:
            return self.num_steps * self.step_rows
        return rank_rows(self.rows, *self.order_rank)

    def own(self, step: int) -> tuple[int, int]:
        """This rank's rows of a step, as [start, stop) from the start of the epoch."""
        first = step * self.step_rows
        rows = max(min(self.step_rows, self.num_rows - first), 0)
        start, stop = 0, rows
        if self.share == "slices":
            start, stop = even_slice(rows, self.rank, self.world_size)
        elif self.share == "batches":
            start = min(self.rank * self.batch_size, rows)
            stop = min(start + self.batch_size, rows)
        return first + start, first + stop

    def ranges(self, window: ShuffleWindow, first_step: int) -> RowRanges:
        """The rows of a window that this rank reads from `first_step` on: one range for each batch."""
        begin, end = window.first_row, min(window.first_row + window.rows, self.num_rows)
        ranges = []
        for step in range(max(begin // self.step_rows, first_step), -(-end // self.step_rows)):
            start, stop = self.own(step)
            start, stop = max(start, begin), min(stop, end)
            if start < stop:
                ranges.append((start - begin, stop - begin))
        return ranges

    def too_few_rows(self) -> str:
        """What is wrong where `drop_last` leaves no step at all."""
        if self.share == "slices":
            over, most = f" over {self.world_size} ranks", self.rows
        else:
            over, most = f" on each of {self.world_size} ranks", self.rows // self.world_size
        smaller = f"a smaller one (data.batch_size={most} at most)" if most else "other splits or fewer ranks"
        return (
            f"{self.rows:,} rows do not fill one batch of {self.batch_size:,}"
            f"{over if self.world_size > 1 else ''}; take {smaller}."
        )
