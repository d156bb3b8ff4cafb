"""A sketch of candidates in plain Python: a dictionary of rows for each bucket."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megalith.ops.chunks.sketch import ENTRY, CandidateTable

Bucket = dict[int, np.float32]


class CandidateSketchTwin:
    """What `CandidateSketch` must be indistinguishable from."""

    def __init__(self, tables: Sequence[CandidateTable]) -> None:
        self.tables = tuple(tables)
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
                rows = sorted(found)
                entries[unit - first, bucket, : len(rows)] = [(row, found[row]) for row in rows]
        state = np.ascontiguousarray(entries).view(np.uint8)
        return torch.from_numpy(state.reshape(last - first, own.unit_bytes))

    def _bucket(self, table: int, row: int) -> Bucket:
        own = self.tables[table]
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
            del bucket[min(bucket, key=lambda own: (bucket[own], -own))]


def _is_utility(number: np.float32) -> bool:
    return bool(np.isfinite(number) and number > 0)
