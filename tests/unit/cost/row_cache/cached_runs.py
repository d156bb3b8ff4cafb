"""Streams of known skew, and real pools of rows that they are run through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, PoolStatistics, TieredRows

SKEWS = {"criteo": 1.2, "middle": 0.9, "gowalla": 0.56}
"""Zipf exponents: of 200,000 rows, 1% take 88%, 48% and 13% of the accesses."""
ROWS = 200_000


COUNTED = ("lookups", "hits", "read_rows", "new_rows", "evicted_rows", "written_back_rows")


def use(pool: TieredRows, lookups: torch.Tensor, ids: torch.Tensor, number: int) -> None:
    """One batch, from its ids to its release."""
    pool.resolve(lookups, ids, number, trains=True)
    pool.arrive(number)
    pool.release(number)


@dataclass(frozen=True)
class CachedRun:
    """Batches of one table whose ids fall as rank ** -skew, through a pool."""

    skew: float
    capacity: int
    policy: str
    window: int = 0
    batch: int = 1024
    steps: int = 400
    dim: int = 4
    rows: int = ROWS

    @property
    def overflow(self) -> int:
        return max(self.capacity // 64, 64)

    def ids(self) -> list[torch.Tensor]:
        shares = np.cumsum(np.arange(1.0, self.rows + 1) ** -self.skew)
        generator = np.random.default_rng(7)
        drawn = generator.random((self.steps, self.batch)) * shares[-1]
        return list(torch.from_numpy(np.searchsorted(shares, drawn)))

    def run(
        self, folder: Path, trained: bool = False, **disk: object
    ) -> tuple[PoolStatistics, PoolStatistics]:
        """Statistics at four fifths of the run and at its end; the rows are flushed then.

        `trained` rows were all used once before it, which is not counted.
        """
        folder.mkdir(exist_ok=True)
        batches, lookups = self.ids(), torch.tensor([[0, 0, self.batch]])
        table = PooledTable(self.rows, StartValues(1, "t", self.dim, 1.0))
        memory = [torch.zeros(self.capacity + 1, self.dim)]
        settings = DiskSettings(folder, **{"segment_bytes": 1 << 18, **disk})
        pool = TieredRows([table], memory, settings, self.policy, self.overflow)
        before = 0
        if trained:
            for ids in torch.randperm(self.rows, generator=torch.Generator().manual_seed(1)).split(
                self.batch
            ):
                before += 1
                use(pool, torch.tensor([[0, 0, len(ids)]]), ids, before)
        announced, early, begin = 0, pool.statistics(), pool.statistics()
        for number, ids in enumerate(batches, start=1):
            while self.policy == "lookahead" and announced < min(number + self.window, self.steps):
                announced += 1
                pool.expect(lookups, batches[announced - 1], before + announced)
            use(pool, lookups, ids, before + number)
            if number == self.steps * 4 // 5:
                early = pool.statistics()
        end = pool.statistics()
        counted = {name: getattr(end, name) - getattr(begin, name) for name in COUNTED}
        end = end._replace(**counted)
        pool.flush()
        flushed_bytes = pool.statistics().file_bytes
        pool.close()
        return early, end._replace(file_bytes=flushed_bytes)
