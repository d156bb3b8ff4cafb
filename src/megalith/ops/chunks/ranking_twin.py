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
from megalith.ops.chunks.ranking_sums import SUM_NUMBERS, RankingSettings, fade_sixteenths, ranking_means
from megalith.ops.chunks.sketch_twin import CandidateSketchTwin

Floats = npt.NDArray[np.float32]
_GOLDEN, _TIES, _BITS = 0x9E3779B97F4A7C15, 0xA24BAED4963EE407, 2**64 - 1


class RankedRow(NamedTuple):
    """A row with the keys of its chunks, up to the last that lives or that something asked for."""

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
        self.floor, self.hysteresis = settings.numbers()
        self.factors = settings.factors(pool.shape.chunks, pool.shape.width)
        self.values: dict[tuple[int, int], Floats] = {}
        """By table and id: of all chunks that compete."""

    def sums(self) -> Tensor:
        """How many norms live chunks of each table have, and their mantissas by exponent."""
        sums = np.zeros((len(self.pool.tables), SUM_NUMBERS), dtype=np.int64)
        for (table, _), row in self._rows():
            norms = self._norms(row)
            sums[table, 0] += np.isfinite(norms).sum()
            _add_exactly(sums[table], norms)
        return torch.from_numpy(sums)

    @staticmethod
    def means(total: Tensor) -> Tensor:
        """Of each table."""
        return ranking_means(total)

    def score(self, norms: Tensor, fades: Sequence[float] | None = None) -> Tensor:
        """Keeps the values of all chunks that compete; their sums by table."""
        shape, self.values = self.pool.shape, {}
        sums = np.zeros((len(self.pool.tables), SUM_NUMBERS), dtype=np.int64)
        powers = fade_sixteenths(fades, len(self.pool.tables))
        others = [_power(np.array([self.floor]), power) for power in powers]
        for (table, row_id), row in self._rows():
            utilities, growth = _utilities(row), np.float32(row.growth.float().item())
            sizes = self._norms(row) / norms[table].numpy()
            sizes = np.where(sizes > self.floor, sizes, self.floor).astype(np.float32)
            values = _positive(utilities * _power(sizes, powers[table]))
            _add_exactly(sums[table], values)
            live = len(values)
            if live < shape.chunks:
                _add_exactly(sums[table], _positive(growth * others[table]))
                values = np.append(values, self._others(growth, others[table], live))
            self.values[table, row_id] = np.minimum.accumulate(values)
        for table, is_exempt in enumerate(self.exempt):
            if is_exempt:
                continue
            sums[table, 0] = self.sketch.tables[table].num_rows * shape.chunks
            ids, found = self.sketch.entries(table)
            for row_id, utility in zip(ids.tolist(), found.numpy(), strict=True):
                if (table, row_id) not in self.pool.rows:
                    _add_exactly(sums[table], _positive(utility * others[table]))
                    self.values[table, row_id] = self._others(utility, others[table], 0)
        return torch.from_numpy(sums)

    def histogram(self, scales: Tensor, level: int, prefix: int = 0) -> Tensor:
        """Bytes of the chunks that compete, by 16 bits of their key."""
        counted = torch.zeros(HISTOGRAM_SIZE, dtype=torch.int64)
        bytes_ = (0, *self.pool.row_bytes[1:])
        for row in self.ranked(scales):
            for chunk, key in enumerate(row.keys):
                if level == 0 or key >> 48 - 16 * level == prefix:
                    counted[key >> 32 - 16 * level & 0xFFFF] += bytes_[chunk + 1] - bytes_[chunk]
        return counted

    def changes(self, scales: Tensor, key: int) -> Tensor:
        """What `apply` would change."""
        total = np.zeros(len(RankingChanges._fields), dtype=np.int64)
        for row in self.ranked(scales):
            kept = row.kept(key)
            bytes_ = self.pool.row_bytes[kept] if kept else 0
            begins, goes = row.live == 0 and kept > 0, row.live > 0 and kept == 0
            total += [max(row.live - kept, 0), max(kept - row.live, 0), begins, goes, bytes_]
        return torch.from_numpy(total)

    def apply(self, scales: Tensor, key: int) -> None:
        """Prunes and grows."""
        left: list[tuple[int, int, np.float32]] = []
        for table, (ids, _) in enumerate(map(self.sketch.entries, range(len(self.pool.tables)))):
            if not self.exempt[table]:
                here = [row for row in ids.tolist() if (table, row) in self.pool.rows]
                self.sketch.remove(table, torch.tensor(here, dtype=torch.int64))
        for row in list(self.ranked(scales)):
            kept, own = row.kept(key), (row.table, row.id)
            if kept == row.live:
                continue
            utility, growth = np.float32(0), self._growth(row)
            if kept > row.live:
                others, gained = self.pool.shape.chunks - row.live, kept - row.live
                utility = growth / np.float32(others)
                rest = growth - utility * np.float32(gained)
                growth = rest if gained < others and rest > 0 else np.float32(0)
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

    def ranked(self, scales: Tensor) -> Iterator[RankedRow]:
        """All that competes: rows with a record, and candidates."""
        for (table, row_id), values in sorted(self.values.items(), key=lambda item: item[0]):
            row = self.pool.rows.get((table, row_id))
            live = 0 if row is None else len(_utilities(row))
            spread = np.append(values, np.repeat(values[-1:], self.pool.shape.chunks - len(values)))
            divided = spread / (scales[table].numpy() * self.factors)
            scores = _positive(np.asarray(divided, dtype=np.float32))
            yield RankedRow(table, row_id, live, self._keys(table, row_id, live, scores))

    def _rows(self) -> list[tuple[tuple[int, int], TwinRow]]:
        ranked = self.pool.ranked_rows
        return [
            ((table, row), held)
            for (table, row), held in self.pool.rows.items()
            if not self.exempt[table] and row < ranked[table]
        ]

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

    def _others(self, utility: np.float32, magnitude: Floats, live: int) -> Floats:
        """The value of each chunk that does not live."""
        share = utility / np.float32(self.pool.shape.chunks - live)
        return _positive(np.asarray(share * magnitude / self.hysteresis, dtype=np.float32))

    def _keys(self, table: int, row_id: int, live: int, scores: Floats) -> list[int]:
        bits = scores.view(np.uint32).tolist()
        while len(bits) > live and bits[-1] == 0:
            bits.pop()
        start = self.pool.tables[table].start
        row_key = _mixed(start.table_seed + (self.pool.id_of(table, row_id) + start.first_row) * _GOLDEN)
        keys = [own << 16 | _mixed(row_key ^ (_TIES + chunk)) >> 48 for chunk, own in enumerate(bits)]
        return [min(keys[: chunk + 1]) for chunk in range(len(keys))]


def _utilities(row: TwinRow) -> Floats:
    """Of live chunks, which are the first."""
    live = row.mask.bit_count() if row.mask >= 0 else 64 - (~row.mask).bit_count()
    return row.utilities[:live].float().numpy()


def _positive(numbers: Floats) -> Floats:
    return np.where(numbers > 0, numbers, 0).astype(np.float32)


def _power(numbers: Floats, sixteenths: int) -> Floats:
    if sixteenths == 16:
        return numbers
    power, root = np.ones_like(numbers), numbers
    for bit in (8, 4, 2, 1):
        root = np.sqrt(root)
        power = power * root if sixteenths & bit else power
    return power


def _add_exactly(sums: npt.NDArray[np.int64], numbers: Floats) -> None:
    for bits in numbers.view(np.uint32).tolist():
        if bits < 0x7F800000:
            exponent = bits >> 23
            sums[1 + exponent] += bits & 0x7FFFFF | bool(exponent) << 23


def _mixed(x: int) -> int:
    x &= _BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _BITS
    return x ^ x >> 31
