"""What a run's next checkpoint has to hold: all, or what changed since the last one.

    tracker.follow(state)                    # what was loaded is what the next one is over
    taken = tracker.take(state, delta)       # dense part copied; rows not yet
    taken.feed()                             # the thread that trains: snapshots, and a queue of bounded size
    taken.write(folder, ...)                 # the thread that saves: from both to files
    tracker.keep(taken)                      # it is on disk: the next one is over it

Of tables whose rows are marked as they are touched (`TouchedRows`), marks say what changed; all others are
compared by content (`RowDigests`). Marked rows in memory are read by `write` while training goes on, which
copies those that it is about to change (`RowSnapshot`). Compared rows are copied into the queue. Rows in
segment files are put on disk and linked by `feed`, and read back by `write`, from the files that are new
since the last time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from megalith.checkpoint.differential.block_queue import BlockQueue, TableBlock
from megalith.checkpoint.differential.row_codec import quantised
from megalith.checkpoint.differential.settings import Bits
from megalith.checkpoint.manifest import DENSE_FILE, DeltaRecord
from megalith.checkpoint.pool_files import SavedSegments
from megalith.checkpoint.state import Leaves, leaves_of
from megalith.checkpoint.tensor_file import write_tensors
from megalith.checkpoint.writer import RowFiles, WrittenFiles, sparse_record, write_pools
from megalith.embeddings.changes.row_digests import RowDigests
from megalith.embeddings.changes.row_snapshot import CopiedBytes, RowSnapshot
from megalith.embeddings.row_block import RowBlock, kept_parts
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.row_files import Holds, RowPool, SegmentRows
from megalith.embeddings.table_state import ReadableShard, TableShard

CONSUMER = "checkpoint"
"""The name under which touched rows are asked for."""
_SHARES = {"waiting": 2, "file": 4, "piece": 16}
"""Of the bound on memory: what waits, what a file gathers, what is taken at once."""

_Place = tuple[str, tuple[int, int], tuple[int, int]]


class ChangeTracker:
    """The rows of this process as the last checkpoint has them."""

    def __init__(self, memory: int) -> None:
        self._queue_bytes, self.file_bytes, self._piece = (max(1, memory // of) for of in _SHARES.values())
        self._digests: dict[_Place, RowDigests] = {}
        self._segments: WeakKeyDictionary[RowPool, frozenset[str]] = WeakKeyDictionary()

    def follow(self, state: dict[str, object]) -> None:
        """The rows are now those of a checkpoint: the next delta is over them."""
        self._digests.clear()
        # Which segment files rows were loaded into is not known: the first delta looks through all.
        self._segments.clear()
        for path, shard in _written_shards(leaves_of(state)):
            if shard.touched is not None:
                shard.touched.watch(CONSUMER)
            else:
                self._digests_of(path, shard).see(shard.blocks(self._piece))

    def take(self, state: dict[str, object], delta: DeltaRecord | None) -> TakenRows:
        """Begins to take what changed, or with no `delta` everything."""
        leaves = leaves_of(state)
        tensors = {name: tensor.detach().clone() for name, tensor in leaves.tensors.items()}
        if delta is None:
            self._digests.clear()
            self._segments.clear()
        return TakenRows(
            leaves._replace(tensors=tensors), delta, BlockQueue(self._queue_bytes), self._piece, self
        )

    def keep(self, taken: TakenRows) -> None:
        """What was taken is on disk."""
        for digests in taken.compared:
            digests.keep()
        for pool in taken.pools:
            self._segments[pool] = frozenset(each.name for each in taken.holds.of(pool).segments)

    def bytes(self) -> int:
        """Of the digests; marks are counted by their tables."""
        return sum(digests.bytes() for digests in self._digests.values())

    def digests_of(self, path: str, shard: TableShard) -> RowDigests:
        """Those of a rectangle."""
        return self._digests_of(path, shard)

    def new_segments(self, rows: SegmentRows, pool: RowPool) -> SegmentRows:
        """The files that the last checkpoint did not know: all that changed since is in them."""
        known = self._segments.get(pool, frozenset())
        return rows._replace(segments=tuple(each for each in rows.segments if each.name not in known))

    def _digests_of(self, path: str, shard: TableShard) -> RowDigests:
        return self._digests.setdefault((path, shard.rows, shard.columns), RowDigests())


class TakenRows:
    """One checkpoint on its way to disk."""

    def __init__(
        self, leaves: Leaves, delta: DeltaRecord | None, queue: BlockQueue, piece: int, tracker: ChangeTracker
    ) -> None:
        self.leaves, self.delta, self.queue, self.holds = leaves, delta, queue, Holds()
        self.compared: list[RowDigests] = []
        self.pools: dict[RowPool, dict[int, str]] = {}
        """Of pools whose files have rows of this process, by number the paths of their tables."""
        self._copies = CopiedBytes(queue.max_bytes)
        self._snapshots: list[tuple[str, TableShard, RowSnapshot]] = []
        self._wanted: dict[tuple[RowPool, int], Tensor] = {}
        """By table of a pool, which of its rows changed."""
        self._piece, self._tracker = piece, tracker

    def feed(self) -> None:
        """Puts all rows into the queue. What could not be taken is an error of whoever writes: then other
        ranks hear of it."""
        try:
            for path, shard in _written_shards(self.leaves):
                if shard.files is not None:
                    self._hold(path, shard)
                    continue
                if isinstance(shard, DenseShard) and shard.touched and not shard.touched.every_row:
                    self._snapshot(path, shard)
                    continue
                for block in self._blocks(path, shard):
                    self.queue.put(TableBlock(path, block, shard.sparse))
                if shard.touched is None and len(gone := self.compared[-1].gone):
                    for ids in gone.split(max(1, self._piece // 8)):
                        self.queue.put(
                            TableBlock(path, RowBlock(ids, (0, 0), {}), shard.sparse, deleted=True)
                        )
        except BaseException as error:
            self.queue.complete(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.queue.complete()

    def write(self, folder: Path, rank: int, file_bytes: int, saved: SavedSegments) -> WrittenFiles:
        """Writes a rank's files; what every rank has is written by the first."""
        written = WrittenFiles()
        if rank == 0:
            written.files[DENSE_FILE] = write_tensors(folder / DENSE_FILE, self.leaves.tensors)
        rows = RowFiles(folder, rank, min(file_bytes, self._tracker.file_bytes), written)
        # What waits in the queue holds the trainer up; snapshots do not.
        for each in self.queue:
            if each.deleted:
                rows.add(each.table, each.block, each.sparse, deleted=True)
            else:
                self._add(rows, each)
        # Small ones first: then steps have fewer tables to look through.
        for path, shard, snapshot in sorted(self._snapshots, key=lambda each: each[2].rows):
            for block in snapshot.blocks(self._piece):
                self._add(rows, TableBlock(path, block, shard.sparse))
            self._release(shard, snapshot)
        if self.delta is not None:
            for each in self._pooled():
                self._add(rows, each)
        rows.close()
        if self.delta is None:
            write_pools(folder, rank, self.pools, self.holds, saved, written)
        for path, shard in _written_shards(self.leaves):
            if shard.sparse:
                written.sparse.setdefault(path, []).append(sparse_record(shard))
        return written

    @property
    def peak_bytes(self) -> int:
        """The most rows that waited to be written, in bytes."""
        return self.queue.peak_bytes + self._copies.peak_bytes

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(self, *_: object) -> None:
        self.queue.abandon()
        self._copies.close()
        for _path, shard, snapshot in self._snapshots:
            snapshot.close()
            self._release(shard, snapshot)
        self.holds.release()

    def _add(self, rows: RowFiles, each: TableBlock) -> None:
        bits: Bits = 32 if self.delta is None or self.leaves.tables[each.table].optional else self.delta.bits
        for block, own_bits in quantised(each.block, bits):
            rows.add(each.table, block, each.sparse, own_bits)

    def _blocks(self, path: str, shard: TableShard) -> Iterator[RowBlock]:
        """What is to be written of a rectangle that is in memory, in memory of its own."""
        if shard.touched is None:
            digests = self._tracker.digests_of(path, shard)
            self.compared.append(digests)
            yield from digests.changed(shard.blocks(self._piece))
        elif self.delta is None:
            shard.touched.watch(CONSUMER)
            for block in shard.blocks(self._piece):
                yield RowBlock(
                    block.ids, block.columns, {name: part.clone() for name, part in block.parts.items()}
                )
        else:
            yield from touched_blocks(shard, shard.touched.take(CONSUMER), self._piece)

    def _snapshot(self, path: str, shard: DenseShard) -> None:
        touched = shard.touched
        assert touched is not None
        chosen = None if self.delta is None else touched.take(CONSUMER)
        if chosen is None:
            touched.watch(CONSUMER)
        snapshot = RowSnapshot(shard, chosen, self._copies)
        self._snapshots.append((path, shard, snapshot))
        touched.hold(snapshot)

    @staticmethod
    def _release(shard: TableShard, snapshot: RowSnapshot) -> None:
        if shard.touched is not None:
            shard.touched.release(snapshot)

    def _hold(self, path: str, shard: TableShard) -> None:
        assert shard.files is not None
        pool, number = shard.files
        self.pools.setdefault(pool, {})[number] = path
        self.holds.of(pool)
        if self.delta is None:
            if shard.touched is not None:
                shard.touched.watch(CONSUMER)
            return
        wanted = torch.zeros(shard.rows[1] - shard.rows[0], dtype=torch.bool)
        wanted[slice(None) if shard.touched is None else shard.touched.take(CONSUMER)] = True
        self._wanted[pool, number] = wanted

    def _pooled(self) -> Iterator[TableBlock]:
        """The changed rows that are in files."""
        for pool, tables in self.pools.items():
            windows = pool.layout.tables
            new = self._tracker.new_segments(self.holds.of(pool), pool)
            for number, block in new.blocks(self._piece):
                if number not in tables:
                    continue
                ids = torch.as_tensor(block.ids)
                chosen = self._wanted[pool, number][ids - windows[number].rows[0]]
                if bool(chosen.any()):
                    parts = {name: part[chosen] for name, part in block.parts.items()}
                    yield TableBlock(tables[number], RowBlock(ids[chosen], block.columns, parts), sparse=True)


def touched_blocks(shard: TableShard, positions: Tensor, max_bytes: int) -> Iterator[RowBlock]:
    """Some rows of a rectangle whose rows can be read one by one, copied."""
    readable: ReadableShard = shard  # type: ignore[assignment]
    left, right = shard.columns
    specs = {name: shard.specs[name] for name in kept_parts(shard.specs, left)}
    row_bytes = sum(spec.numbers(1, right - left) * spec.dtype.itemsize for spec in specs.values())
    if not row_bytes:
        return
    for some in positions.split(max(1, max_bytes // row_bytes)):
        if len(some):
            ids = some + shard.rows[0]
            parts = readable.read(ids)
            yield RowBlock(ids, shard.columns, {name: parts[name] for name in specs})


def _written_shards(leaves: Leaves) -> Iterator[tuple[str, TableShard]]:
    """The rectangles that this process writes, with the tables that they are of."""
    for path, table in leaves.tables.items():
        for shard in table.shards:
            if shard.writes and shard.columns[0] < shard.columns[1]:
                yield path, shard
