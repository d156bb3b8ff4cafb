"""The files that a rank writes: the rows that it holds, in blocks, and on the first rank the dense part.

    dense.safetensors            tensors that every rank has
    rows-00001-003.safetensors   the fourth file of rank 1: blocks of rows, of one table or several
    segments-00001-0/            the segment files of the first pool of rank 1, by hard links

Memory for one file at a time is enough: blocks of rows that are in memory are views.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from megalith.checkpoint.differential.settings import Bits
from megalith.checkpoint.manifest import (
    DENSE_FILE,
    BlockRecord,
    FileRecord,
    PoolRecord,
    SparseRecord,
    TableRecord,
)
from megalith.checkpoint.pool_files import SavedSegments, write_pool
from megalith.checkpoint.state import Leaves
from megalith.checkpoint.tensor_file import write_tensors
from megalith.embeddings.row_block import PartRecord, RowBlock
from megalith.embeddings.stores.row_files import Holds, RowPool, StartRecord
from megalith.embeddings.table_state import TableShard, TableState

FILE_BYTES = 64 << 20
"""A file is closed when it holds as much, and no block is larger."""


@dataclass
class WrittenFiles:
    """What a rank has written, as the manifest lists it."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    blocks: dict[str, list[BlockRecord]] = field(default_factory=dict)
    """By table."""
    sparse: dict[str, list[SparseRecord]] = field(default_factory=dict)
    """By table."""
    pools: list[PoolRecord] = field(default_factory=list)


def write_rank(
    leaves: Leaves,
    folder: Path,
    rank: int,
    file_bytes: int,
    holds: Holds,
    saved: SavedSegments,
) -> WrittenFiles:
    """Writes a rank's files into `folder`. What every rank has is written by the first.

    Rows that are in files are linked: those of `holds`, or what another checkpoint has of them.
    """
    written = WrittenFiles()
    if rank == 0:
        written.files[DENSE_FILE] = write_tensors(folder / DENSE_FILE, leaves.tensors)
    rows = RowFiles(folder, rank, file_bytes, written)
    pooled: dict[RowPool, dict[int, str]] = {}
    for table, state in leaves.tables.items():
        for shard in state.shards:
            if not shard.writes:
                continue
            if shard.files is not None:
                pooled.setdefault(shard.files.pool, {})[shard.files.number] = table
            else:
                for block in shard.blocks(file_bytes):
                    rows.add(table, block, shard.sparse)
            if shard.sparse:
                written.sparse.setdefault(table, []).append(sparse_record(shard))
    rows.close()
    write_pools(folder, rank, pooled, holds, saved, written)
    return written


def write_pools(
    folder: Path,
    rank: int,
    pooled: Mapping[RowPool, Mapping[int, str]],
    holds: Holds,
    saved: SavedSegments,
    written: WrittenFiles,
) -> None:
    """Links the files of a rank's pools; of each, by number, the tables of the checkpoint in it."""
    for number, (pool, tables) in enumerate(pooled.items()):
        paths = tuple(tables.get(table) for table in range(len(pool.layout.tables)))
        record = PoolRecord(name=f"segments-{rank:05d}-{number}", layout=pool.layout, paths=paths)
        written.files[record.list_file] = write_pool(folder, record, pool, holds.of(pool), saved)
        written.pools.append(record)


def sparse_record(shard: TableShard) -> SparseRecord:
    """What the manifest says of a rectangle that lacks rows."""
    if shard.start is None:
        raise ValueError(f"rows {shard.rows} are left out where they are as they begin, which is not known")
    start = StartRecord.of(shard.start)
    return SparseRecord(rows=shard.rows, columns=shard.columns, start=start, chunk=shard.chunk)


def table_records(tables: dict[str, TableState], written: list[WrittenFiles]) -> dict[str, TableRecord]:
    """What the manifest says of each table, from what all ranks have written of it."""
    return {
        name: TableRecord(
            rows=state.rows,
            dim=state.dim,
            parts={part: PartRecord.of(spec) for part, spec in state.parts.items()},
            blocks=tuple(block for of_rank in written for block in of_rank.blocks.get(name, ())),
            sparse=tuple(rectangle for of_rank in written for rectangle in of_rank.sparse.get(name, ())),
            is_raw=state.is_raw,
        )
        for name, state in tables.items()
    }


class RowFiles:
    """Gathers blocks until a file is full."""

    def __init__(self, folder: Path, rank: int, file_bytes: int, written: WrittenFiles) -> None:
        self._folder, self._rank, self._file_bytes, self._written = folder, rank, file_bytes, written
        self._tensors: dict[str, Tensor] = {}
        self._bytes = self._count = 0

    def add(
        self, table: str, block: RowBlock, sparse: bool, bits: Bits = 32, *, deleted: bool = False
    ) -> None:
        """Takes a block in; a file that would grow too large is written first."""
        parts: dict[str, Tensor] = dict(block.parts)
        first: int | None = None
        if isinstance(block.ids, range):
            first = block.ids.start
        else:
            parts["ids"] = block.ids
        if self._bytes:
            size = sum(part.numel() * part.element_size() for part in parts.values())
            if self._bytes + size > self._file_bytes:
                self.close()
        # Rows and columns tell blocks of a table apart, a count those that name their ids.
        start = f"ids-{len(self._tensors)}" if first is None else first
        name = f"{table}/{start}" + (f"+{block.columns[0]}" if block.columns[0] else "")
        for part, tensor in parts.items():
            self._tensors[f"{name}/{part}"] = tensor
            self._bytes += tensor.numel() * tensor.element_size()
        record = BlockRecord(
            name=name,
            file=self._name(),
            first=first,
            count=len(block.ids),
            columns=block.columns,
            sparse=sparse,
            bits=bits,
            deleted=deleted,
        )
        self._written.blocks.setdefault(table, []).append(record)

    def close(self) -> None:
        """Writes what was gathered, if anything was."""
        if self._tensors:
            self._written.files[self._name()] = write_tensors(self._folder / self._name(), self._tensors)
            self._tensors, self._bytes, self._count = {}, 0, self._count + 1

    def _name(self) -> str:
        return f"rows-{self._rank:05d}-{self._count:03d}.safetensors"
