"""`ChunkFiles`: weights and optimizer state of chunked rows on disk, in records of few lengths.

A row with k live chunks has a record that has room for the next power of two of them, so that there are few
kinds of files. Each length has a pool of its own (`ops.stores.tiered_rows`), of which only the disk is used.
What rows are worth and which of their chunks live is not here: callers say how many chunks to read.
"""

from __future__ import annotations

import itertools
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from megalith.core.errors import StorageError, storage_errors
from megalith.core.lock import FolderLock
from megalith.core.units import format_bytes
from megalith.embeddings.stores.base import TierCounts
from megalith.embeddings.stores.row_files import clear_rows
from megalith.embeddings.stores.settings import TieredMemory
from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows, segment_bytes_for

_MOST_SEGMENT = 4 << 20
"""There are files of several lengths, each with segments that are being filled."""


class ChunkFiles:
    """Rows of some tables of one shape, by table and row. One thread changes them, another may read."""

    def __init__(
        self,
        tables: Sequence[PooledTable],
        shape: ChunkShape,
        memory: TieredMemory,
        parents: Sequence[Path] = (),
    ) -> None:
        """`parents` are folders above its own, the nearest first, that go with it once they are empty."""
        assert memory.path is not None
        self.shape, self.memory, self.folder = shape, memory, memory.path
        # What is not there is never read: start values need not fit.
        self._tables = [PooledTable(table.rows, StartValues(0, "", 1, 0.0)) for table in tables]
        doubled = itertools.takewhile(lambda n: n < shape.chunks, (1 << bit for bit in range(7)))
        self.lengths = torch.tensor([*doubled, shape.chunks])
        """Live chunks that a record of each length has room for, rising."""
        self._pools: dict[int, TieredRows] = {}
        self._parents, self._is_locked = tuple(parents), False
        self.num_read = self.num_written = 0

    def length_of(self, live: Tensor) -> Tensor:
        """The number of the length for rows with so many chunks."""
        return torch.searchsorted(self.lengths, live)

    def write(self, table: int, block: ChunkedBlock) -> None:
        """Takes weights and state of rows, whatever was there before."""
        live = live_counts(block.masks, self.shape)
        number = self.length_of(live)
        for length in number.unique().tolist():
            chosen = number == length
            chunks = int(self.lengths[length])
            records = torch.cat(
                [
                    _bytes_of(_padded(part, live, chosen, kind, chunks, self.shape))
                    for part, kind in zip(block[4:], self._kinds, strict=True)
                    if kind != "none"
                ],
                dim=1,
            )
            spare = self._record_bytes(chunks) - records.shape[1]
            records = torch.nn.functional.pad(records, (0, spare))
            self._pool(length).load(table, block.ids[chosen], [records])
            for other, pool in self._pools.items():
                if other != length:
                    pool.drop(table, block.ids[chosen])
        self.num_written += len(live)
        self._check_bound()

    def read(self, table: int, ids: Tensor, masks: Tensor) -> ChunkedBlock:
        """The chunks of rows that masks name, which are the first ones; utilities are zeros."""
        live = live_counts(masks, self.shape)
        block = empty_block(self.shape, ids, masks)
        number = self.length_of(live)
        for length in number.unique().tolist():
            chosen, chunks = number == length, int(self.lengths[length])
            pool = self._pools.get(length)
            if pool is None:
                continue
            (records,) = pool.read(table, ids[chosen])
            first = 0
            for part, kind in zip(block[4:], self._kinds, strict=True):
                if kind == "none":
                    continue
                columns = 1 if kind == "row" else chunks * self.shape.width
                size = columns * part.element_size()
                own = records[:, first : first + size].contiguous().view(part.dtype)
                first += size
                _put(part, own, live, chosen, kind, self.shape)
        self.num_read += len(live)
        return block

    def drop(self, table: int, ids: Tensor) -> None:
        """Forgets rows, of whatever length; those that are not there are no matter."""
        for pool in self._pools.values():
            pool.drop(table, ids)

    def move(self, table: int, ids: Tensor, before: Tensor, now: Tensor) -> Tensor:
        """Gives rows that have lost chunks (int64 counts) shorter records; which ones got one, bool."""
        shorter = self.length_of(now) < self.length_of(before)
        if bool(shorter.any()):
            rows = self.read(table, ids[shorter], first_masks(before[shorter], self.shape))
            self.write(table, selected(rows, first_masks(now[shorter], self.shape), self.shape))
        return shorter

    def held_blocks(self, blocks: Iterable[ChunkedBlock]) -> HeldBlocks:
        """Copies blocks to disk, where they stay for as long as what is returned."""
        self._lock()
        return HeldBlocks(self.folder / f"held-{uuid.uuid4().hex[:8]}", blocks)

    def disk_bytes(self) -> int:
        """Of all files."""
        return sum(pool.statistics().file_bytes for pool in self._pools.values())

    def index_bytes(self) -> int:
        """Where records lie."""
        return sum(pool.statistics().index_bytes for pool in self._pools.values())

    def buffer_bytes(self) -> int:
        """What is being filled, written and read."""
        found = (pool.statistics() for pool in self._pools.values())
        return sum(each.buffer_bytes + each.directory_bytes for each in found)

    def counts(self) -> TierCounts:
        """Rows and bytes read and written."""
        found = [pool.statistics() for pool in self._pools.values()]
        return TierCounts(
            reads=self.num_read,
            written_rows=self.num_written,
            read_bytes=sum(each.read_bytes for each in found),
            written_bytes=sum(each.written_bytes for each in found),
        )

    @property
    def _kinds(self) -> tuple[str, str, str]:
        """Of weights and states, as they lie in a record."""
        return "full", self.shape.first_state, self.shape.second_state

    def _record_bytes(self, chunks: int) -> int:
        columns = chunks * self.shape.width
        numbers = {"none": 0, "row": 1, "full": columns}
        state = 4 * (numbers[self.shape.first_state] + numbers[self.shape.second_state])
        return -(-(columns * self.shape.dtype.itemsize + state) // 4) * 4

    def _pool(self, length: int) -> TieredRows:
        """The files of a length; nothing is written before one is needed."""
        if length not in self._pools:
            self._lock()
            chunks = int(self.lengths[length])
            folder, row_bytes = self.folder / f"chunks-{chunks}", self._record_bytes(chunks)
            with storage_errors(folder):
                folder.mkdir(exist_ok=True)
            disk = DiskSettings(
                folder,
                segment_bytes=min(
                    _MOST_SEGMENT, segment_bytes_for(row_bytes * sum(table.rows for table in self._tables))
                ),
                max_bytes=self.memory.disk or 0,
                engine="threads" if self.memory.engine == "threads" else "io_uring",
                depth=64,
                threads=8,
            )
            self._pools[length] = TieredRows(
                self._tables, [torch.zeros(2, row_bytes, dtype=torch.uint8)], disk
            )
        return self._pools[length]

    def _lock(self) -> None:
        """Takes the folder, and removes what an earlier process left there."""
        if self._is_locked:
            return
        lock = FolderLock(self.folder, "holds rows of tables that are used")
        lock.acquire()
        self._is_locked = True
        weakref.finalize(self, _remove, self.folder, lock, self._parents)
        with storage_errors(self.folder):
            _clear(self.folder)

    def _check_bound(self) -> None:
        if self.memory.disk is not None and self.disk_bytes() > self.memory.disk:
            raise StorageError(
                f"{self.folder} may hold {format_bytes(self.memory.disk)} of rows and is full; raise its "
                "bound (memory.disk)."
            )


class HeldBlocks:
    """Blocks on disk as they were; the files go with the object."""

    def __init__(self, folder: Path, blocks: Iterable[ChunkedBlock]) -> None:
        self._folder, self._count = folder, 0
        weakref.finalize(self, shutil.rmtree, folder, True)
        with storage_errors(folder):
            folder.mkdir(parents=True)
            for block in blocks:
                save_file(block._asdict(), folder / f"{self._count}.safetensors")
                self._count += 1

    def __iter__(self) -> Iterator[ChunkedBlock]:
        for number in range(self._count):
            yield ChunkedBlock(**load_file(self._folder / f"{number}.safetensors"))


def live_counts(masks: Tensor, shape: ChunkShape) -> Tensor:
    """How many chunks live, int64 [rows]."""
    return ((masks[:, None] >> torch.arange(shape.chunks)) & 1).sum(dim=1)


def first_masks(live: Tensor, shape: ChunkShape) -> Tensor:
    """The masks of rows that have their first chunks."""
    return torch.tensor([shape.first_chunks(count) for count in range(shape.chunks + 1)])[live]


def empty_block(shape: ChunkShape, ids: Tensor, masks: Tensor) -> ChunkedBlock:
    """Rows of zeros with these chunks."""
    live = int(live_counts(masks, shape).sum())
    numbers = {"none": 0, "row": len(ids), "full": live * shape.width}
    first, second = (torch.zeros(numbers[state]) for state in (shape.first_state, shape.second_state))
    growth, utilities = (torch.zeros(count, dtype=torch.bfloat16) for count in (len(ids), live))
    weights = torch.zeros(live * shape.width, dtype=shape.dtype)
    return ChunkedBlock(ids, masks, growth, utilities, weights, first, second)


def selected(block: ChunkedBlock, masks: Tensor, shape: ChunkShape) -> ChunkedBlock:
    """The rows of a block with fewer of their first chunks; those with none are left out."""
    before, now = live_counts(block.masks, shape), live_counts(masks, shape)
    rows = now > 0
    within = torch.arange(int(before.sum())) - (before.cumsum(0) - before).repeat_interleave(before)
    chunks = within < now.repeat_interleave(before)
    columns = chunks.repeat_interleave(shape.width)
    by_kind: dict[str, Tensor] = {"none": rows[:0], "row": rows, "full": columns}
    return ChunkedBlock(
        *(block.ids[rows], masks[rows], block.growth[rows], block.utilities[chunks], block.weights[columns]),
        *(block.first[by_kind[shape.first_state]], block.second[by_kind[shape.second_state]]),
    )


def merged(blocks: Sequence[ChunkedBlock], shape: ChunkShape) -> ChunkedBlock:
    """Rows of several blocks in the order of ids."""
    ids, order = torch.cat([block.ids for block in blocks]).sort()
    masks = torch.cat([block.masks for block in blocks])
    live = live_counts(masks, shape)
    firsts = live.cumsum(0) - live
    lengths = live[order]
    within = torch.arange(int(live.sum())) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    chunks = firsts[order].repeat_interleave(lengths) + within
    columns = (chunks[:, None] * shape.width + torch.arange(shape.width)).view(-1)
    by_kind = {"none": order[:0], "row": order, "full": columns}
    growth, utilities, weights, first, second = (
        torch.cat(list(parts)) for parts in list(zip(*blocks, strict=True))[2:]
    )
    return ChunkedBlock(
        *(ids, masks[order], growth[order], utilities[chunks], weights[columns]),
        *(first[by_kind[shape.first_state]], second[by_kind[shape.second_state]]),
    )


def _padded(part: Tensor, live: Tensor, chosen: Tensor, kind: str, chunks: int, shape: ChunkShape) -> Tensor:
    """Numbers of the chosen rows, [rows, numbers], with zeros behind those of live chunks."""
    if kind == "row":
        return part[chosen].view(-1, 1)
    columns = live * shape.width
    own = torch.zeros(int(chosen.sum()), chunks * shape.width, dtype=part.dtype)
    own[torch.arange(own.shape[1]) < columns[chosen, None]] = part[chosen.repeat_interleave(columns)]
    return own


def _put(part: Tensor, own: Tensor, live: Tensor, chosen: Tensor, kind: str, shape: ChunkShape) -> None:
    """Puts numbers of the chosen rows into those of all."""
    if kind == "row":
        part[chosen] = own.view(-1)
        return
    columns = live * shape.width
    part[chosen.repeat_interleave(columns)] = own[torch.arange(own.shape[1]) < columns[chosen, None]]


def _bytes_of(numbers: Tensor) -> Tensor:
    return numbers.contiguous().view(torch.uint8)


def _clear(folder: Path) -> None:
    clear_rows(folder)
    for path in folder.glob("chunks-*"):
        clear_rows(path)


def _remove(folder: Path, lock: FolderLock, parents: Sequence[Path]) -> None:
    """The files of a store that is gone; what is worth keeping is in checkpoints."""
    with suppress(OSError):
        _clear(folder)
        for path in folder.glob("chunks-*"):
            path.rmdir()
        lock.release()
        for empty in (folder, *parents):
            empty.rmdir()
