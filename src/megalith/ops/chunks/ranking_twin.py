"""A ranking of chunks in plain numpy, over the twins of a pool and its sketch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megalith.ops.chunks.chunked_rows_twin import ChunkedRowsTwin, TwinRow
from megalith.ops.chunks.ranking import HISTOGRAM_SIZE, RankingChanges
from megalith.ops.chunks.ranking_sums import SUM_NUMBERS, RankingSettings, ranking_means
from megalith.ops.chunks.sketch_twin import CandidateSketchTwin

Floats = npt.NDArray[np.float32]
_GOLDEN, _TIES, _BITS = 0x9E3779B97F4A7C15, 0xA24BAED4963EE407, 2**64 - 1


class RankedRow(NamedTuple):
    """A row with the keys of its live chunks and, if something asked for it, of its next."""

    table: int
    id: int
    live: int
    keys: list[int]

    def kept(self, key: int) -> int:
        """How many chunks it has under a threshold."""
        return sum(own >= key for own in self.keys)


class RankingTwin:
    """What `Ranking` must be indistinguishable from."""

    def __init__(
        self,
        pool: ChunkedRowsTwin,
        sketch: CandidateSketchTwin,
        settings: RankingSettings,
        exempt: Sequence[bool],
    ) -> None:
        self.pool, self.sketch, self.exempt = pool, sketch, exempt
        self.floor, self.ceiling, self.dead, self.hysteresis, self.new_utility = settings.numbers()
        self.factors = settings.factors(pool.shape.chunks, pool.shape.width)

    def sums(self) -> Tensor:
        """How many utilities and norms live chunks of each table have, and their mantissas by exponent."""
        sums = np.zeros((len(self.pool.tables), 2, SUM_NUMBERS), dtype=np.int64)
        for (table, _), row in self._rows():
            for number, values in enumerate((_utilities(row), self._norms(row))):
                for bits in values.view(np.uint32).tolist():
                    if bits < 0x7F800000:
                        exponent = bits >> 23
                        sums[table, number, 0] += 1
                        sums[table, number, 1 + exponent] += bits & 0x7FFFFF | bool(exponent) << 23
        return torch.from_numpy(sums)

    @staticmethod
    def means(total: Tensor) -> Tensor:
        """Of utilities and norms."""
        return ranking_means(total)

    def histogram(self, means: Tensor, level: int, prefix: int = 0) -> Tensor:
        """Bytes of the chunks that compete, by 16 bits of their key."""
        counted = torch.zeros(HISTOGRAM_SIZE, dtype=torch.int64)
        bytes_ = (0, *self.pool.row_bytes[1:])
        for row in self.ranked(means):
            for chunk, key in enumerate(row.keys):
                if level == 0 or key >> 48 - 16 * level == prefix:
                    counted[key >> 32 - 16 * level & 0xFFFF] += bytes_[chunk + 1] - bytes_[chunk]
        return counted

    def changes(self, means: Tensor, key: int) -> Tensor:
        """What `apply` would change."""
        total = np.zeros(len(RankingChanges._fields), dtype=np.int64)
        for row in self.ranked(means):
            kept = row.kept(key)
            bytes_ = self.pool.row_bytes[kept] if kept else 0
            begins, goes = row.live == 0 and kept > 0, row.live > 0 and kept == 0
            total += [max(row.live - kept, 0), max(kept - row.live, 0), begins, goes, bytes_]
        return torch.from_numpy(total)

    def apply(self, means: Tensor, key: int) -> None:
        """Prunes and grows."""
        left: list[tuple[int, int, np.float32]] = []
        for table, (ids, _) in enumerate(map(self.sketch.entries, range(len(self.pool.tables)))):
            if not self.exempt[table]:
                here = [row for row in ids.tolist() if (table, row) in self.pool.rows]
                self.sketch.remove(table, torch.tensor(here, dtype=torch.int64))
        for row in list(self.ranked(means)):
            kept, own = row.kept(key), (row.table, row.id)
            if kept == row.live:
                continue
            utility, growth = np.float32(0), self._growth(row)
            if kept > row.live:
                share = growth / np.float32(self.pool.shape.chunks - row.live)
                utility = max(share, self.new_utility * np.float32(means[row.table, 0]))
                growth = growth - share if growth - share > 0 else np.float32(0)
            else:
                for number in _utilities(self.pool.rows[own])[kept:]:
                    growth = growth + number
            if row.live == 0:
                self.sketch.remove(row.table, torch.tensor([row.id]))
            if kept == 0:
                left.append((*own, growth))
            mask = torch.tensor([self.pool.shape.first_chunks(kept)])
            numbers = torch.tensor([float(utility)]), torch.tensor([float(growth)])
            self.pool.rewrite(row.table, torch.tensor([row.id]), mask, *numbers)
        for table, row_id, utility in left:
            self.sketch.add(torch.tensor([[table, row_id]]), torch.tensor([float(utility)]), 1.0)

    def ranked(self, means: Tensor) -> Iterator[RankedRow]:
        """All that competes: rows with a record, then candidates."""
        for (table, row_id), row in sorted(self._rows(), key=lambda item: item[0]):
            live = len(_utilities(row))
            scores = self._live_scores(row, *means[table].numpy())
            if live < self.pool.shape.chunks:
                growth = np.float32(row.growth.float().item())
                scores = np.append(scores, self._next_score(growth, np.float32(means[table, 0]), live))
            yield RankedRow(table, row_id, live, self._keys(table, row_id, live, scores))
        for table in range(len(self.pool.tables)):
            if self.exempt[table]:
                continue
            ids, utilities = self.sketch.entries(table)
            for row_id, utility in zip(ids.tolist(), utilities.numpy(), strict=True):
                if (table, row_id) not in self.pool.rows:
                    score = self._next_score(utility, np.float32(means[table, 0]), 0)
                    yield RankedRow(table, row_id, 0, self._keys(table, row_id, 0, np.array([score])))

    def _rows(self) -> list[tuple[tuple[int, int], TwinRow]]:
        return [item for item in self.pool.rows.items() if not self.exempt[item[0][0]]]

    def _growth(self, row: RankedRow) -> np.float32:
        if row.live:
            return np.float32(self.pool.rows[row.table, row.id].growth.float().item())
        ids, utilities = self.sketch.entries(row.table)
        return np.float32(utilities[ids == row.id].item())

    def _norms(self, row: TwinRow) -> Floats:
        """In eight sums, halved three times."""
        shape, live = self.pool.shape, len(_utilities(row))
        weights = row.weight[: live * shape.width].float().view(live, shape.width).numpy()
        padded = np.pad(weights, ((0, 0), (0, -shape.width % 8))).reshape(live, -1, 8)
        sums = np.zeros((live, 8), dtype=np.float32)
        for group in range(padded.shape[1]):
            sums = sums + padded[:, group] * padded[:, group]
        for half in (4, 2, 1):
            sums = sums[:, :half] + sums[:, half : 2 * half]
        return np.sqrt(sums[:, 0])

    def _live_scores(self, row: TwinRow, mean_utility: np.float32, mean_norm: np.float32) -> Floats:
        utilities = _utilities(row)
        magnitudes = self._norms(row) / mean_norm
        magnitudes = np.where(magnitudes > self.floor, magnitudes, self.floor)
        magnitudes = np.where(magnitudes < self.ceiling, magnitudes, self.ceiling).astype(np.float32)
        scores = utilities / mean_utility * magnitudes / self.factors[: len(utilities)]
        return np.asarray(scores, dtype=np.float32)

    def _next_score(self, utility: np.float32, mean: np.float32, live: int) -> np.float32:
        share = utility / np.float32(self.pool.shape.chunks - live)
        return share / mean * self.dead / self.factors[live] / self.hysteresis

    def _keys(self, table: int, row_id: int, live: int, scores: Floats) -> list[int]:
        found = np.where(scores > 0, scores, 0).astype(np.float32)
        bits = np.minimum.accumulate(found.view(np.uint32)).tolist()
        if live < len(bits) and bits[live] == 0:
            bits.pop()
        start = self.pool.tables[table].start
        row_key = _mixed(start.table_seed + (row_id + start.first_row) * _GOLDEN)
        keys = [own << 16 | _mixed(row_key ^ (_TIES + chunk)) >> 48 for chunk, own in enumerate(bits)]
        return [min(keys[: chunk + 1]) for chunk in range(len(keys))]


def _utilities(row: TwinRow) -> Floats:
    """Of live chunks, which are the first."""
    live = row.mask.bit_count() if row.mask >= 0 else 64 - (~row.mask).bit_count()
    return row.utilities[:live].float().numpy()


def _mixed(x: int) -> int:
    x &= _BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _BITS
    return x ^ x >> 31
