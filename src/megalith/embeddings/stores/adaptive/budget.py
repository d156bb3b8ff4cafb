"""`AdaptiveBudget`: what the adaptive tables of a model share, and the ranking of all their chunks.

    budget.after_step(7)      # from `EmbeddingCollection.update`; every `interval` steps it prunes and grows

Between two rankings the budget is open or closed. Open, every row that a training batch lacks begins at once;
closed, such rows only gather utility in a sketch. Nothing of it depends on how tables are cut over ranks:
numbers are integers that are added over all of them before anything is decided.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megalith.core.errors import ConfigError
from megalith.core.units import format_bytes
from megalith.embeddings.stores.adaptive.figures import AdaptiveCounts, AdaptiveFigures, LiveColumns
from megalith.embeddings.stores.adaptive.forgetting import FORGOTTEN, UtilityPredictions
from megalith.embeddings.stores.adaptive.ranking_times import is_ranking, next_ranking
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy, BudgetSchedule
from megalith.embeddings.stores.base import StoreBytes
from megalith.ops.chunks.ranking import HISTOGRAM_SIZE, Ranking, RankingChanges, threshold
from megalith.ops.chunks.ranking_sums import SUM_NUMBERS
from megalith.ops.chunks.sketch import UNITS, CandidateTable

if TYPE_CHECKING:
    from megalith.embeddings.stores.adaptive.store import AdaptiveStore

AddOverRanks = Callable[[Tensor], Tensor]
"""Sums an int64 tensor over all ranks, the same on each."""

_ARENA_PART = 1 / 64
"""Of the budget, for what is free behind the records of an extent and for saying where."""
_SMALL_POOL, _PAGE, _HALF_EXTENT = 16 << 20, 4 << 10, 32 << 10
"""Small pools are packed to the page, one of which is partly free for each length of records; in larger ones
an extent of 64 KiB is, half of it on average."""
_COUNTED_INDEX = 11
"""Bytes of an index that a row counts as where chunks compete."""


def unused_index_bytes(rows: int, live: float) -> int:
    """What the index of a table takes less than its live rows count as: it has the smallest of three forms.

    A hash takes 10.6 bytes a live row, a bitmap with ranks a seventh of a byte for each row and four for each
    live one, an array four for each row (docs/decisions/0018).
    """
    return int(_COUNTED_INDEX * live - min(10.6 * live, rows / 7 + 4 * live, 4 * rows))


def of_one_process(numbers: Tensor) -> Tensor:
    """The sum over ranks where there is one."""
    return numbers


class AdaptiveBudget:
    """The bytes of all adaptive tables, which of their chunks live, and whether rows may begin."""

    def __init__(
        self,
        policy: AdaptivePolicy,
        dense_bytes: int,
        rows: Mapping[str, int],
        num_lengths: int,
        shared_bytes: int = 0,
    ) -> None:
        """Of all adaptive tables on all ranks together: bytes as dense ones, the rows of each by name, the
        lengths that records may have, over all shapes of rows, and bytes of rows that are always whole."""
        self.policy, self.schedule = policy, BudgetSchedule(policy, dense_bytes)
        self.rows = dict(rows)
        self.numbers = {name: number for number, name in enumerate(rows)}
        """Of tables, by name."""
        # Stores know their budget: not the other way round as well, or files would outlive their tables.
        self._stores: list[weakref.ref[AdaptiveStore]] = []
        self.counts = AdaptiveCounts()
        self.live = torch.zeros(len(rows), dtype=torch.int64)
        """Chunks of each table, on all ranks, when they were last ranked."""
        self.num_lengths, self.shared_bytes = num_lengths, shared_bytes
        self.is_open = True
        """Whether rows begin as soon as a training batch lacks them."""
        self._last = self._used = self._begun = 0
        """The step of the last ranking, what was used then, and what begins in an interval."""
        self.predictions = UtilityPredictions(list(rows.values()))
        """How well utilities predict gradients, by table."""

    def join(self, store: AdaptiveStore) -> None:
        """Takes a store in; all have to be there before the first step. A rank may have none."""
        self._stores.append(weakref.ref(store))

    @property
    def stores(self) -> list[AdaptiveStore]:
        """Those that have joined and are still there."""
        return [store for known in self._stores if (store := known()) is not None]

    def check(self) -> None:
        """Refuses a budget that has no room for chunks, once all stores are there."""
        left = self.chunk_bytes(self.schedule.end)
        if left is not None and left <= 0:
            raise ConfigError(
                f"The budget of adaptive tables is {format_bytes(self.schedule.final)}, and looking for rows "
                f"to grow in {len(self.rows)} tables takes {format_bytes(self.sketch_bytes)}; give them more "
                "(adaptive.budget, adaptive.ratio), or keep small tables dense."
            )

    def candidates(self, table: str) -> CandidateTable:
        """The part of the sketch for a table."""
        rows = self.rows[table]
        share = self.policy.sketch * rows / sum(self.rows.values()) if self.schedule.is_limited else 0.0
        return CandidateTable(rows, int(share * self.schedule.final))

    @property
    def sketch_bytes(self) -> int:
        """Of the parts of all tables, on all ranks together."""
        return sum(self.candidates(table).unit_bytes * UNITS for table in self.rows)

    def chunks_of_new_rows(self, chunks: int) -> int:
        """How many of its `chunks` a new row begins with now; 0 where none may begin."""
        if not self.is_open:
            return 0
        return chunks if self.schedule.at(self._last) is None else min(self.policy.first_chunks, chunks)

    def utility_weight(self, step: int) -> float:
        """What gradients of a step count, so that older ones fade without being touched."""
        return float(2.0 ** (step * self.policy.halvings - self._scale))

    @property
    def _scale(self) -> int:
        """Utilities are multiplied with 2 to minus this, as weights grow."""
        return math.floor(self._last * self.policy.halvings)

    def after_step(self, step: int, add: AddOverRanks = of_one_process) -> None:
        """Ranks all chunks if it is time; where there are ranks, all of them call it."""
        for table in self.predictions.after_step(step, self.utility_weight(step), add):
            self._forget(table)
        if is_ranking(step, self.policy.ranking_interval, self.predictions.forgot_at):
            self.rank(step, add)

    def _forget(self, table: int) -> None:
        """Leaves little of the utilities of a table whose ids have changed."""
        for store in self.stores:
            for own in (store.numbers == table).nonzero().view(-1).tolist():
                store.stored.scale_utilities(FORGOTTEN, own)
                store.sketch.scale(FORGOTTEN, own)
        self.predictions.scale(FORGOTTEN, table)

    def rank(self, step: int, add: AddOverRanks = of_one_process) -> None:
        """Prunes and grows chunks so that all bytes fit the budget of a step; decides whether rows begin."""
        before, passed, interval = self._scale, step - self._last, self.policy.ranking_interval
        self._last = step
        factor = 2.0 ** (before - self._scale)
        for store in self.stores:
            if factor != 1:
                store.stored.scale_utilities(factor)
                store.sketch.scale(factor)
        self.predictions.scale(factor)
        used, limit = self.used_bytes(add), self.chunk_bytes(step)
        if self.is_open:
            # While it is closed nothing begins: what would is about what did when it was last open.
            self._begun = (used - self._used) * interval // passed
        self.is_open = True
        if limit is not None:
            used, limit = self._change(used, limit, add)
            ahead = next_ranking(step, interval, self.predictions.forgot_at) - step
            self.is_open = used + 2 * self._begun * ahead // interval <= limit
        self._used = used

    def chunk_bytes(self, step: int) -> int | None:
        """What records and index may take after a step; None is as much as they want."""
        budget = self.schedule.at(step)
        if budget is None:
            return None
        part, most = (_PAGE, 1 / 2) if budget <= _SMALL_POOL else (_HALF_EXTENT, 1 / 8)
        free = min(most * budget, _ARENA_PART * budget + part * self.num_lengths)
        return int(budget - self.sketch_bytes - self.shared_bytes - free)

    def used_bytes(self, add: AddOverRanks = of_one_process) -> int:
        """What all rows with a record count as."""
        used = sum(store.used_bytes() for store in self.stores)
        return int(add(torch.tensor([used])))

    def _change(self, used: int, limit: int, add: AddOverRanks) -> tuple[int, int]:
        """One ranking over all pools; returns what is used afterwards, and how much may be."""
        rows = self._by_table(lambda store: torch.tensor(store.num_rows()), (), add)
        sums = self._by_table(lambda store: store.ranking.sums(), (SUM_NUMBERS,), add)
        self.live = sums[:, 0].clone()
        norms, fades = Ranking.means(sums), self.predictions.fades(self._last)

        def score(store: AdaptiveStore) -> Tensor:
            return store.ranking.score(norms[store.numbers], [fades[own] for own in store.numbers.tolist()])

        scales = Ranking.means(self._by_table(score, (SUM_NUMBERS,), add))

        def histogram(level: int, prefix: int) -> Tensor:
            total = torch.zeros(HISTOGRAM_SIZE, dtype=torch.int64)
            for store in self.stores:
                total += store.ranking.histogram(scales[store.numbers], level, prefix)
            return add(total)

        def changes_at(key: int) -> RankingChanges:
            total = torch.zeros(len(RankingChanges._fields), dtype=torch.int64)
            for store in self.stores:
                total += store.ranking.changes(scales[store.numbers], key)
            return RankingChanges(*add(total).tolist())

        room = limit + self._unused_index(rows, 1.0)
        key = threshold(histogram, room)
        changes = changes_at(key)
        left = (int(rows.sum()) - changes.removed + changes.begun) / max(1, int(rows.sum()))
        if left < 1:
            # Fewer rows leave less of what their index does not take.
            room = limit + self._unused_index(rows, left)
            key = threshold(histogram, room)
            changes = changes_at(key)
        changed = changes.pruned + changes.grown
        applies = changed > 0 and (used > room or changed > self.policy.least_change * int(self.live.sum()))
        for store in self.stores:
            if applies:
                store.apply(scales[store.numbers], key)
            else:
                store.ranking.forget()
        self.counts = self.counts.after(changes if applies else None)
        return changes.bytes if applies else used, room

    def _by_table(
        self, numbers: Callable[[AdaptiveStore], Tensor], shape: tuple[int, ...], add: AddOverRanks
    ) -> Tensor:
        """Whole numbers of all tables, [tables, *shape], added over ranks."""
        total = torch.zeros(len(self.rows), *shape, dtype=torch.int64)
        for store in self.stores:
            # A store may have several parts of a table.
            total.index_add_(0, store.numbers, numbers(store))
        return add(total)

    def _unused_index(self, rows: Tensor, part: float) -> int:
        """Where only a part of the rows lives that do now."""
        both = zip(self.rows.values(), rows.tolist(), strict=True)
        return sum(unused_index_bytes(declared, part * live) for declared, live in both)

    def figures(self) -> AdaptiveFigures:
        """What the tables of this process are now."""
        taken, tables = StoreBytes(), dict[str, LiveColumns]()
        for store in self.stores:
            taken = taken.plus(store.bytes())
            found = store.stored.statistics()
            is_whole, ranked = sum(found.records) == found.records[-1], store.num_rows()
            for number, table in enumerate(store.tables):
                name, shape = table.window.table.name, store.shape
                rows, live = self.rows[name], int(self.live[self.numbers[name]])
                whole = ranked[number] * shape.dim / rows if is_whole else None
                own = LiveColumns(whole, ranked=live * shape.width / rows)
                tables[name] = own.plus(tables[name]) if name in tables else own
        budget = self.schedule.at(self._last)
        return AdaptiveFigures(
            budget, taken, self.schedule.dense_bytes, tables, self.counts, is_open=self.is_open
        )

    def state_dict(self, add: AddOverRanks = of_one_process) -> dict[str, Any]:
        """What the next decisions depend on, beside the rows and the step; all ranks call it together."""
        return {
            "open": self.is_open,
            "last": self._last,
            "used": self._used,
            "begun": self._begun,
            "predictions": self.predictions.state_dict(add),
        }

    def load_state_dict(self, state: dict[str, Any], step: int, *, is_first: bool = True) -> None:
        """Goes on from the state after a step; one rank is the first."""
        # Older checkpoints are of runs that ranked at every interval alone.
        self._last = state.get("last", step - step % self.policy.ranking_interval)
        self.is_open, self._used, self._begun = state["open"], state["used"], state["begun"]
        self.predictions.load_state_dict(state["predictions"], is_first=is_first)
