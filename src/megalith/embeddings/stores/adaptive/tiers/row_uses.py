"""`RowUses`: which rows in memory were used longest ago, and which are still needed.

Batches are noted as they are, with all their ids; only when rows have to leave are uses counted together.
Rows are numbered over all tables: a key is the first key of a table and the row.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

_NEVER = -1


class RowUses:
    """The last batch that uses each row, as far as it is known."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.first_keys = [0, *itertools.accumulate(rows)][:-1]
        """By table."""
        self._batches: dict[int, Tensor] = {}
        self._pinned: dict[int, Tensor] = {}
        self._keys = torch.empty(0, dtype=torch.int64)
        """Rising, with the last batch of each."""
        self._last = torch.empty(0, dtype=torch.int64)
        self._lock = threading.Lock()

    def note(self, batch: int, lookups: Tensor, values: Tensor) -> None:
        """A batch uses these rows, or will."""
        keys = self._keys_of(lookups, values)
        with self._lock:
            self._batches[batch] = keys

    def pin(self, batch: int, lookups: Tensor, values: Tensor) -> None:
        """The rows of a batch stay until it is released."""
        self._pinned[batch] = self._keys_of(lookups, values)

    def release(self, batch: int) -> None:
        """The rows of a batch may leave."""
        self._pinned.pop(batch, None)

    def leaving_order(self, keys: Tensor) -> Tensor:
        """Positions of those that may leave, first those whose last known use is longest ago."""
        with self._lock:
            batches, self._batches = self._batches, {}
        known = [self._keys, *batches.values()]
        last = [self._last, *(torch.full((len(own),), batch) for batch, own in batches.items())]
        # Uses of the same row lie together, the last one behind the others.
        joined, times = torch.cat(known), torch.cat(last)
        times, order = times.sort(stable=True)
        joined, again = joined[order].sort(stable=True)
        times = times[again]
        newest = torch.ones(len(joined), dtype=torch.bool)
        newest[:-1] = joined[1:] != joined[:-1]
        self._keys, self._last = joined[newest], times[newest]
        # What is not in memory is forgotten, unless it is yet to come.
        here = torch.isin(self._keys, keys) | (self._last >= min(batches, default=0))
        self._keys, self._last = self._keys[here], self._last[here]
        ages = torch.full((len(keys),), _NEVER)
        if len(self._keys):
            at = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
            ages = torch.where(self._keys[at] == keys, self._last[at], ages)
        free = torch.ones(len(keys), dtype=torch.bool)
        for own in self._pinned.values():
            free &= ~torch.isin(keys, own)
        positions = free.nonzero().view(-1)
        return positions[ages[positions].sort(stable=True).indices]

    def bytes(self) -> int:
        """What it takes to know."""
        batches = [*self._batches.values(), *self._pinned.values()]
        return 8 * (2 * len(self._keys) + sum(len(own) for own in batches))

    def _keys_of(self, lookups: Tensor, values: Tensor) -> Tensor:
        parts = [
            self.first_keys[table] + values[first:last].long() for table, first, last in lookups.tolist()
        ]
        return torch.cat([torch.empty(0, dtype=torch.int64), *parts])
