"""The batches that a dynamic store has resolved and not yet released, and the tickets of inner stores."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from megalith.core.errors import CacheFullError
from megalith.embeddings.stores.base import RowStore


class SharedRowUse(NamedTuple):
    """The row that ids without one share, in a part of a table, as a batch uses it."""

    table: int
    positions: Tensor
    """int64: the values that read it."""
    slot: int
    """In memory until the batch is released, also where no value reads it."""


@dataclass(eq=False)
class DynamicBatch:
    """Ids of a batch under way, and what inner stores hold for it."""

    lookups: Tensor
    values: Tensor
    """int64: raw ids"""
    trains: bool
    guesses: Tensor | None = None
    """int32: rows that ids had when it was resolved, -1 where none; they spare a search."""
    guessed: list[tuple[RowStore, int]] = field(default_factory=list)
    """Rows that it probably uses, brought into memory ahead: they may be let go at any time."""
    held: list[tuple[RowStore, int]] = field(default_factory=list)
    slots: Tensor | None = None
    """int32, once it has arrived."""
    shared: list[SharedRowUse] = field(default_factory=list)
    """Of parts of tables, once it has arrived."""


class DynamicBatches:
    """Batches by ticket. A pipeline's thread adds them, the thread that computes takes and releases them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[int, DynamicBatch] = {}
        self._last = 0

    def add(self, batch: DynamicBatch) -> int:
        """Its ticket."""
        with self._lock:
            self._last += 1
            self._batches[self._last] = batch
            return self._last

    def __getitem__(self, ticket: int) -> DynamicBatch:
        return self._batches[ticket]

    def release(self, ticket: int) -> None:
        """Lets the rows of a batch leave."""
        with self._lock:
            batch = self._batches.pop(ticket, None)
            tickets = [] if batch is None else [*batch.guessed, *batch.held]
        for store, held in tickets:
            store.release(held)

    def guess(self, batch: DynamicBatch, store: RowStore, lookups: Tensor, rows: Tensor) -> None:
        """Begins to read rows that a batch probably uses, if there is room for them."""
        try:
            _, ticket = store.resolve(lookups, rows, trains=False, wait=False)
        except CacheFullError:
            return
        batch.guessed.append((store, ticket))

    def bring(self, batch: DynamicBatch, store: RowStore, lookups: Tensor, rows: Tensor) -> Tensor:
        """Slots of the rows that a batch uses, in memory until it is released.

        It never waits for others to release: only the thread that calls it does. Where guesses for later
        batches leave no room they are let go.
        """
        while True:
            try:
                slots, ticket = store.resolve(lookups, rows, trains=batch.trains, wait=False)
                break
            except CacheFullError:
                if not self._let_go_of_guesses():
                    raise
        batch.held.append((store, ticket))
        arrived = store.arrive(ticket)
        return slots if arrived is None else arrived

    def _let_go_of_guesses(self) -> bool:
        with self._lock:
            tickets = [held for batch in self._batches.values() for held in batch.guessed]
            for batch in self._batches.values():
                batch.guessed.clear()
        for store, ticket in tickets:
            store.release(ticket)
        return bool(tickets)
