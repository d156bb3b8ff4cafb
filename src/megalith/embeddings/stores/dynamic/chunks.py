"""`DynamicChunks`: tables of a dynamic store whose rows are in chunks, as the map of ids changes them.

An id that gets a row has it from its first chunk on, or none while the budget is closed; an id that loses its
row loses its chunks, their utilities and its place in the sketch at once. The sketch travels by raw id and
comes before the rows, so it is put in its place when the ids have theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from megalith.embeddings.row_block import WEIGHT
from megalith.embeddings.stores.adaptive.mapped import CANDIDATES, candidate_units
from megalith.embeddings.stores.adaptive.store import AdaptiveStore
from megalith.embeddings.stores.base import RowStore
from megalith.embeddings.stores.dynamic.batches import DynamicBatch, SharedRowUse
from megalith.embeddings.stores.dynamic.side_states import SideShard
from megalith.embeddings.table_state import TableState
from megalith.ops.chunks.sketch import raw_entries
from megalith.ops.chunks.steps import ChunkStep
from megalith.ops.ids.changes import EvictedIds, NewIdRows
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.policies import RAW_ID_BYTES


@dataclass(frozen=True)
class CandidateShard(SideShard):
    """Units of a sketch by raw id."""

    def clear(self) -> None:
        """No candidate at all."""
        count, width = self.rows[1] - self.rows[0], self.columns[1]
        self.write({WEIGHT: torch.zeros(count, width, dtype=torch.uint8)}, slice(None))


class DynamicChunks:
    """Of the tables of a dynamic store, those whose rows are in chunks."""

    def __init__(self, places: Sequence[tuple[RowStore, int]]) -> None:
        self._all = places
        self._tables = {
            number: (store, own)
            for number, (store, own) in enumerate(places)
            if isinstance(store, AdaptiveStore)
        }
        self._loaded: dict[int, Tensor] = {}
        """Sketches that came before the ids of their rows."""

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def bytes(self) -> int:
        """What it takes to know which id has a row."""
        return sum(RAW_ID_BYTES * store.tables[own].spec.rows for store, own in self._tables.values())

    def leave(self, evicted: EvictedIds) -> None:
        """Ids have lost their rows."""
        for number, here in _by_table(evicted.tables) if self._tables else ():
            if number in self._tables:
                store, own = self._tables[number]
                # Those that were loaded and got none have no row to lose.
                here = here[evicted.rows[here] >= 0]
                store.drop_rows(own, evicted.rows[here], evicted.ids[here])

    def begin(self, new: NewIdRows) -> NewIdRows:
        """Ids have got rows; those of them whose rows are whole, which somebody has to write."""
        if not self._tables or not len(new.ids):
            return new
        others = [torch.empty(0, dtype=torch.int64)]
        for number, here in _by_table(new.tables):
            if number in self._tables:
                store, own = self._tables[number]
                store.begin_rows(own, new.rows[here], new.ids[here])
            else:
                others.append(here)
        whole = torch.cat(others)
        return NewIdRows(*(part[whole] for part in new))

    def load(self, table: int, rows: Tensor, ids: Tensor) -> None:
        """Ids that are loaded have got rows, int64 each."""
        store, own = self._tables[table]
        store.begin_rows(own, rows, ids)

    def clear(self, table: int) -> None:
        """No id of a table has a row any more."""
        store, own = self._tables[table]
        store.shard(own).reset()
        store.sketch.units(own).zero_()

    def steps(self, batch: DynamicBatch, step: int) -> list[ChunkStep]:
        """By table; empty where no table has chunks."""
        if not self._tables:
            return []
        of_each = {
            id(store): store.chunk_steps(ticket, step)
            for store, ticket in batch.held
            if isinstance(store, AdaptiveStore)
        }
        return [of_each[id(store)][own] if id(store) in of_each else ChunkStep() for store, own in self._all]

    def updated(self, batch: DynamicBatch) -> None:
        """The rows of a batch took their step."""
        for store, ticket in batch.held if self._tables else ():
            store.updated(ticket)

    def with_slot(self, use: SharedRowUse) -> SharedRowUse:
        """The use of a shared row with the slot that the row has now."""
        if use.table not in self._tables:
            return use
        store, own = self._tables[use.table]
        return use._replace(slot=store.shared_slot(own))

    def states(self, table: int) -> Mapping[str, TableState]:
        """The sketch of a table as checkpoints see it: entries by raw id, in units that are partitions."""
        if table not in self._tables:
            return {}
        store, own = self._tables[table]
        whole = store.budget.candidates(store.tables[own].window.table.name)
        state = candidate_units(whole, (), is_mapped=True)

        def read() -> dict[str, Tensor]:
            loaded = self._loaded.get(table)
            return {WEIGHT: store.sketch.raw_state(own) if loaded is None else loaded.clone()}

        def write(content: dict[str, Tensor], _: slice | Tensor) -> None:
            self._loaded[table] = content[WEIGHT]

        units = store.sketch.tables[own].units
        shard = CandidateShard(units, (0, state.dim), state.parts, read, write)
        return {CANDIDATES: candidate_units(whole, (shard,), is_mapped=True)}

    def settle(self, ids: IdMap) -> None:
        """Gives the sketches that were loaded the rows of their ids; ids without one are forgotten."""
        for table, loaded in self._loaded.items():
            store, own = self._tables[table]
            raw, utilities = raw_entries(loaded)
            rows = ids.resolve(torch.tensor([(table, 0, len(raw))]), raw, ids.batch, trains=False).rows.long()
            store.sketch.replace(own, rows[rows >= 0], utilities[rows >= 0])
        self._loaded.clear()


def _by_table(tables: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each table that is named, and where; in one pass over all of them."""
    given = tables.numpy()
    order = np.argsort(given, kind="stable")
    numbers, firsts = np.unique(given[order], return_index=True)
    for number, positions in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=False):
        yield number, torch.from_numpy(positions)
