"""`TieredChunks`: chunked rows of which some are in memory, and of the others only an outline.

A row is in one of two pools. `pool` has rows as the kernels need them. `outlines` has, of every row on disk,
which chunks live, what they are worth and the norm of each as its only column: rankings read both pools, and
decide what they would decide if all rows were in memory. Weights and optimizer state of outlined rows are in
`ChunkFiles`. Which rows are where shows in no result.

It has the interface of `ChunkedRows` by id, for shards and checkpoints. The thread that computes moves rows;
the one that resolves batches ahead reads what is on disk by then (`prefetch`), to be used if it still holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from megalith.embeddings.stores.adaptive.tiers.chunk_files import (
    ChunkFiles,
    empty_block,
    first_masks,
    live_counts,
    merged,
    selected,
)
from megalith.embeddings.stores.adaptive.tiers.row_uses import RowUses
from megalith.embeddings.stores.settings import TieredMemory
from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedBytes, ChunkedRows, ChunkedStatistics, blocks_by_id

_SLICE = 1 << 15
"""Rows that are moved at a time."""


class PrefetchedRows(NamedTuple):
    """Rows that were read ahead, by table, and which change of the files came before."""

    change: int
    tables: dict[int, ChunkedBlock]


class TieredChunks:
    """Rows of some tables, of which `memory.dram` bytes are in `pool`."""

    def __init__(
        self, pool: ChunkedRows, memory: TieredMemory, capacity: int, parents: Sequence[Path] = ()
    ) -> None:
        """`capacity` are the addresses of outlines."""
        self.pool, self.memory = pool, memory
        self.shape, self.tables = pool.shape, pool.tables
        chunks = self.shape.chunks
        starts = [replace(table.start, dim=chunks, dtype=torch.float32) for table in pool.tables]
        outlined = [replace(table, start=start) for table, start in zip(pool.tables, starts, strict=True)]
        self.outlines = ChunkedRows(outlined, ChunkShape(chunks, 1), capacity)
        self.files = ChunkFiles(pool.tables, self.shape, memory, parents)
        self.uses = RowUses([table.rows for table in pool.tables])
        self._row_bytes = torch.tensor(pool.statistics().row_bytes)
        self._changes: list[tuple[int, Tensor]] = []
        """Rows whose files changed, by number of the change, for what was read ahead."""
        self._change = 0
        self._clean = torch.empty(0, dtype=torch.int64)
        """Keys of rows in memory that nothing changed since they were read: their files still hold."""
        self._changing = threading.Lock()

    # What shards and budgets ask, as of `ChunkedRows`.

    @property
    def generation(self) -> int:
        """Of the rows in memory."""
        return self.pool.generation

    @property
    def raw_ids(self) -> list[Tensor | None]:
        """By table, which id each row has."""
        return self.pool.raw_ids

    @property
    def ranked_rows(self) -> list[int]:
        """By table, the first row of those that compete for nothing: these stay in memory."""
        return self.pool.ranked_rows

    def map_rows(self, table: int, raw_ids: Tensor, ranked_rows: int) -> None:
        """Says which ids the rows of a table have, of both pools."""
        self.pool.map_rows(table, raw_ids, ranked_rows)
        self.outlines.map_rows(table, raw_ids, ranked_rows)

    def ids(self, table: int, first: int = 0, count: int = 1 << 20) -> Tensor:
        """The lowest ids from `first` on that have a record, at most `count`, rising."""
        both = [pool.ids(table, first, count) for pool in (self.pool, self.outlines)]
        return torch.cat(both).sort().values[:count]

    def masks(self, table: int, ids: Tensor) -> Tensor:
        """Which chunks of each row live, int64 [rows]; 0 for a row that is not there."""
        return self.pool.masks(table, ids) | self.outlines.masks(table, ids)

    def blocks(self, table: int, rows: int = 1 << 16) -> Iterator[ChunkedBlock]:
        """All rows of a table in the order of ids, at most so many at a time."""
        return blocks_by_id(self, table, rows)

    def held_blocks(self, table: int) -> Iterable[ChunkedBlock]:
        """The same as they are now, on disk: there may be more than fit into memory."""
        return self.files.held_blocks(self.blocks(table, _SLICE))

    def read(self, table: int, ids: Tensor) -> ChunkedBlock:
        """Rows as they are now, wherever they lie; each must have a record. Nothing moves."""
        here = self.pool.masks(table, ids) != 0
        parts = [self.pool.read(table, ids[here])] if bool(here.any()) else []
        if not bool(here.all()):
            parts.append(self._read_outlined(table, ids[~here]))
        if len(parts) == 1:
            return parts[0]
        return merged(parts, self.shape) if parts else empty_block(self.shape, ids, ids)

    def load(self, table: int, block: ChunkedBlock) -> None:
        """Takes rows as they are given, whatever was there before."""
        for some in torch.arange(len(block.ids)).split(_SLICE):
            chosen = torch.zeros(len(block.ids), dtype=torch.bool)
            chosen[some] = True
            rows = selected(block, torch.where(chosen, block.masks, 0), self.shape)
            self._forget(table, block.ids[some])
            if len(rows.ids):
                self.make_room(int(self._bytes_of(rows.masks).sum()))
                self.pool.load(table, rows)

    def rewrite(self, table: int, ids: Tensor, masks: Tensor) -> None:
        """Removes rows, wherever they lie; other masks than 0 are what rankings give."""
        if bool(masks.any()):
            raise ValueError("rows that are on disk are removed, or changed by a ranking")
        self._forget(table, ids)

    def scale_utilities(self, factor: float, table: int | None = None) -> None:
        """Multiplies utilities of one table, or of all, growth included."""
        self.pool.scale_utilities(factor, table)
        self.outlines.scale_utilities(factor, table)

    def compact(self) -> None:
        """Gives memory back."""
        self.pool.compact()
        self.outlines.compact()

    def statistics(self) -> ChunkedStatistics:
        """What both pools hold; bytes are those in memory, what is known of rows on disk is `utility`."""
        here, outlined = self.pool.statistics(), self.outlines.statistics()
        ours, theirs = here.bytes, outlined.bytes
        return here._replace(
            bytes=ChunkedBytes(
                weights=ours.weights,
                state=ours.state,
                utility=ours.utility + theirs.utility + theirs.weights,
                index=ours.index + theirs.index + self.files.index_bytes(),
                free=ours.free + theirs.free,
                bookkeeping=ours.bookkeeping
                + theirs.bookkeeping
                + self.files.buffer_bytes()
                + self.uses.bytes()
                + 8 * len(self._clean),
            ),
            rows=tuple(map(sum, zip(here.rows, outlined.rows, strict=True))),
            records=tuple(map(sum, zip(here.records, outlined.records, strict=True))),
        )

    # What batches need.

    def prefetch(self, lookups: Tensor, values: Tensor) -> PrefetchedRows:
        """Reads the rows of a batch that are on disk; nothing moves. Any thread may."""
        change = self._change
        found = {}
        for table, ids in self._outlined(lookups, values):
            masks = self.outlines.masks(table, ids)
            ids, masks = ids[masks != 0], masks[masks != 0]
            if len(ids):
                found[table] = self.files.read(table, ids, masks)
        return PrefetchedRows(change, found)

    def bring(
        self, lookups: Tensor, values: Tensor, ahead: PrefetchedRows, *, trains: bool, room: int
    ) -> int:
        """Brings the rows of a batch into memory, with `room` bytes for more; how many came."""
        wanted = self._outlined(lookups, values)
        if trains and len(self._clean):
            self._not_clean(torch.cat([self.uses.first_keys[t] + v for t, v in _by_table(lookups, values)]))
        needed = sum(int(self._bytes_of(self.outlines.masks(table, ids)).sum()) for table, ids in wanted)
        self.make_room(needed + room)
        for table, ids in wanted:
            for some in ids.split(_SLICE):
                self._bring_rows(table, some, ahead, trains)
        return sum(len(ids) for _, ids in wanted)

    def make_room(self, needed: int) -> None:
        """Lets rows leave that no batch under way uses, those used longest ago first."""
        found = self.pool.statistics()
        used = sum(count * size for count, size in zip(found.records, found.row_bytes, strict=True))
        if used + needed <= self.memory.dram:
            return
        # Some more than must, so that not every batch looks for what may leave.
        excess = used + needed - self.memory.dram * 7 // 8
        hot = [self.pool.ids(table, count=max(1, found.rows[table])) for table in range(len(self.tables))]
        hot = [ids[ids < ranked] for ids, ranked in zip(hot, self.ranked_rows, strict=True)]
        keys = torch.cat([first + ids for first, ids in zip(self.uses.first_keys, hot, strict=True)])
        sizes = torch.cat([self._bytes_of(self.pool.masks(t, ids)) for t, ids in enumerate(hot)])
        order = self.uses.leaving_order(keys)
        leaving = keys[order[: int(torch.searchsorted(sizes[order].cumsum(0), excess)) + 1]]
        for table, first in enumerate(self.uses.first_keys):
            own = leaving[(leaving >= first) & (leaving < first + self.tables[table].rows)] - first
            for some in own.sort().values.split(_SLICE):
                self._let_go(table, some)
        self.pool.compact()

    def after_ranking(self, changes: Tensor) -> None:
        """Follows a ranking that has changed outlines: int64 [rows, 4] of (table, row, before, now)."""
        self._not_clean(self._clean)
        for table in changes[:, 0].unique().tolist():
            _, rows, before, now = changes[changes[:, 0] == table].T
            rows, order = rows.sort()
            before, now = before[order], now[order]
            gone, less, more = now == 0, (now > 0) & (now < before), now > before
            self.files.drop(table, rows[gone])
            shorter = self.files.move(table, rows[less], before[less], now[less])
            self._note_change(table, torch.cat([rows[gone], rows[less][shorter]]))
            for some in more.nonzero().view(-1).split(_SLICE):
                self._grow(table, rows[some], before[some])
        self.make_room(0)

    def _bytes_of(self, masks: Tensor) -> Tensor:
        """What rows count as in memory."""
        return self._row_bytes[live_counts(masks, self.shape)] * (masks != 0)

    def _outlined(self, lookups: Tensor, values: Tensor) -> list[tuple[int, Tensor]]:
        """By table, the rising ids of a batch that are on disk."""
        slots = self.outlines.resolve(lookups, values, trains=False).slots
        found: dict[int, list[Tensor]] = {}
        for table, first, last in lookups.tolist():
            own = values[first:last][slots[first:last] > 0]
            if len(own):
                found.setdefault(table, []).append(own.long())
        return [(table, torch.cat(parts).unique()) for table, parts in found.items()]

    def _read_outlined(self, table: int, ids: Tensor) -> ChunkedBlock:
        outline = self.outlines.read(table, ids)
        return self._joined(outline, self.files.read(table, ids, outline.masks))

    @staticmethod
    def _joined(outline: ChunkedBlock, numbers: ChunkedBlock) -> ChunkedBlock:
        return numbers._replace(growth=outline.growth, utilities=outline.utilities)

    def _bring_rows(self, table: int, ids: Tensor, ahead: PrefetchedRows, trains: bool) -> None:
        outline = self.outlines.read(table, ids)
        parts = []
        if table in ahead.tables:
            known = ahead.tables[table]
            changed = [keys for number, keys in self._changes if number > ahead.change]
            stale = torch.cat([*changed, torch.empty(0, dtype=torch.int64)]) - self.uses.first_keys[table]
            at = torch.searchsorted(ids, known.ids).clamp(max=len(ids) - 1)
            holds = (ids[at] == known.ids) & (outline.masks[at] == known.masks)
            holds &= ~torch.isin(known.ids, stale)
            parts.append(selected(known, torch.where(holds, known.masks, 0), self.shape))
        rest = ids if not parts else ids[~torch.isin(ids, parts[0].ids)]
        if len(rest):
            masks = outline.masks[torch.isin(ids, rest)]
            parts.append(self.files.read(table, rest, masks))
        numbers = parts[0] if len(parts) == 1 else merged(parts, self.shape)
        self.pool.load(table, self._joined(outline, numbers))
        self.outlines.rewrite(table, ids, torch.zeros_like(ids))
        if trains:
            self.files.drop(table, ids)
        else:
            self._clean = torch.cat([self._clean, ids + self.uses.first_keys[table]]).sort().values

    def _let_go(self, table: int, ids: Tensor) -> None:
        """Writes rows and keeps their outlines."""
        if not len(ids):
            return
        block, norms = self.pool.read(table, ids), self.pool.norms(table, ids)
        keys = ids + self.uses.first_keys[table]
        clean = torch.isin(keys, self._clean)
        if not bool(clean.all()):
            self.files.write(table, selected(block, torch.where(clean, 0, block.masks), self.shape))
        self._clean = self._clean[~torch.isin(self._clean, keys)]
        self._note_change(table, ids)
        none = torch.empty(0)
        self.outlines.load(table, block._replace(weights=norms, first=none, second=none))
        self.pool.rewrite(table, ids, torch.zeros_like(ids))

    def _grow(self, table: int, ids: Tensor, before: Tensor) -> None:
        """Brings rows that have gained chunks while they were on disk: these begin in memory."""
        outline = self.outlines.read(table, ids)
        kept = first_masks(before, self.shape)
        numbers = self.files.read(table, ids, kept)
        now = live_counts(outline.masks, self.shape)
        self.make_room(int(self._row_bytes[now].sum()))
        norms = self.outlines.shape
        self.pool.load(table, self._joined(selected(outline, kept, norms), numbers))
        # All that a row gains have one utility.
        gained = outline.utilities[now.cumsum(0) - 1].float()
        self.pool.rewrite(table, ids, outline.masks, gained, outline.growth.float())
        self.outlines.rewrite(table, ids, torch.zeros_like(ids))
        self.files.drop(table, ids)

    def _forget(self, table: int, ids: Tensor) -> None:
        """Removes rows from everywhere."""
        keys = ids + self.uses.first_keys[table]
        self._clean = self._clean[~torch.isin(self._clean, keys)]
        self.files.drop(table, ids)
        self._note_change(table, ids)
        for pool in (self.outlines, self.pool):
            own = ids[pool.masks(table, ids) != 0]
            if len(own):
                pool.rewrite(table, own, torch.zeros_like(own))

    def _not_clean(self, keys: Tensor) -> None:
        """Rows in memory are about to change: what their files hold is dead."""
        changed = torch.isin(self._clean, keys)
        if not bool(changed.any()):
            return
        gone, self._clean = self._clean[changed], self._clean[~changed]
        for table, first in enumerate(self.uses.first_keys):
            self.files.drop(table, gone[(gone >= first) & (gone < first + self.tables[table].rows)] - first)

    def _note_change(self, table: int, ids: Tensor) -> None:
        if len(ids):
            self._change += 1
            self._changes.append((self._change, ids + self.uses.first_keys[table]))

    def forget_changes(self, before: int) -> None:
        """Nothing that was read ahead is older than this change."""
        self._changes = [(number, keys) for number, keys in self._changes if number > before]

    @property
    def last_change(self) -> int:
        """Of the files."""
        return self._change


def _by_table(lookups: Tensor, values: Tensor) -> Iterator[tuple[int, Tensor]]:
    for table, first, last in lookups.tolist():
        yield table, values[first:last].long()
