"""A sketch of candidates in plain Python: a dictionary of rows for each bucket."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from megalith.ops.chunks.sketch import ENTRY, CandidateTable

Bucket = dict[int, np.float32]


class CandidateSketchTwin:
    """What `CandidateSketch` must be indistinguishable from."""

    def __init__(
        self, tables: Sequence[CandidateTable], raw_ids: Sequence[Tensor | None] | None = None
    ) -> None:
        self.tables = tuple(tables)
        self._raw_ids = [None] * len(self.tables) if raw_ids is None else list(raw_ids)
        self.buckets: dict[tuple[int, int, int], Bucket] = {}
        """By table, unit and bucket: utilities by row."""

    def add(self, absent: Tensor, norms: Tensor, weight: float) -> None:
        """Adds to the entries of rows, then lets the others compete."""
        given = [
            (table, self.tables[table].first_row + row, np.float32(norm) * np.float32(weight))
            for (table, row), norm in zip(absent.tolist(), norms.numpy(), strict=True)
        ]
        known = [row in self._bucket(table, row) for table, row, _ in given]
        for wanted in (True, False):
            for (table, row, utility), is_known in zip(given, known, strict=True):
                if is_known is wanted:
                    self._insert(table, row, utility)

    def remove(self, table: int, ids: Tensor) -> None:
        """Forgets rows."""
        for row in ids.tolist():
            row += self.tables[table].first_row
            self._bucket(table, row).pop(row, None)

    def scale(self, factor: float) -> None:
        """Multiplies all utilities."""
        for bucket in self.buckets.values():
            for row, utility in list(bucket.items()):
                bucket[row] = utility * np.float32(factor)
                if not _is_utility(bucket[row]):
                    del bucket[row]

    def entries(self, table: int) -> tuple[Tensor, Tensor]:
        """Ids and utilities of a table's candidates, rising."""
        found: Bucket = {}
        for (own, *_), bucket in self.buckets.items():
            found |= bucket if own == table else {}
        rows = sorted(found)
        ids = torch.tensor(rows, dtype=torch.int64) - self.tables[table].first_row
        return ids, torch.from_numpy(np.array([found[row] for row in rows], dtype=np.float32))

    def state(self, table: int) -> Tensor:
        """All that a table has, uint8 [units here, bytes of a unit]."""
        own = self.tables[table]
        first, last = own.units
        entries = np.zeros((last - first, own.buckets, own.bucket_entries), dtype=ENTRY)
        for (number, unit, bucket), found in self.buckets.items():
            if number == table:
                rows = sorted(found, key=partial(self._order, number))
                entries[unit - first, bucket, : len(rows)] = [(row, found[row]) for row in rows]
        state = np.ascontiguousarray(entries).view(np.uint8)
        return torch.from_numpy(state.reshape(last - first, own.unit_bytes))

    def _bucket(self, table: int, row: int) -> Bucket:
        own, raw_ids = self.tables[table], self._raw_ids[table]
        if raw_ids is not None:
            hashed = _hash_id(int(raw_ids[row]))
            if not own.units[0] <= hashed >> 58 < own.units[1]:
                raise IndexError(f"row {row} has an id of another partition")
            return self.buckets.setdefault(
                (table, hashed >> 58, ((hashed >> 26 & 0xFFFFFFFF) * own.buckets) >> 32), {}
            )
        unit = row // own.unit_rows
        if not own.units[0] <= unit < own.units[1] or row >= own.rows:
            raise IndexError(f"row {row} is not here")
        return self.buckets.setdefault((table, unit, row % own.unit_rows // own.bucket_rows), {})

    def _insert(self, table: int, row: int, utility: np.float32) -> None:
        bucket = self._bucket(table, row)
        if not _is_utility(utility):
            return
        with np.errstate(over="ignore"):
            added = bucket.get(row, np.float32(0)) + utility
        if _is_utility(added):
            bucket[row] = added
        if len(bucket) > self.tables[table].bucket_entries:
            del bucket[min(bucket, key=lambda own: (bucket[own], -self._order(table, own)))]

    def _order(self, table: int, row: int) -> int:
        """What entries are in the order of, and equal utilities are told apart by."""
        raw_ids = self._raw_ids[table]
        return row if raw_ids is None else int(raw_ids[row])


def _is_utility(number: np.float32) -> bool:
    return bool(np.isfinite(number) and number > 0)


def _hash_id(id_: int) -> int:
    """The finaliser of splitmix64 over the 64 bits of an id."""
    bits = 2**64 - 1
    x = id_ & bits
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & bits
    x = (x ^ x >> 27) * 0x94D049BB133111EB & bits
    return x ^ x >> 31
