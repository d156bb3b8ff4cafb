"""Reads row pools of a checkpoint: as files that a pool takes as its own, or row by row where it cannot.

A pool of the same tables, windows and optimizer adopts the files: links, and a look at headers and keys. Any
other cut of the tables, other stores included, reads the segments and takes what it holds of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from megalith.checkpoint.manifest import PoolRecord
from megalith.checkpoint.pool_files import read_pool
from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import RowBlock
from megalith.embeddings.stores.row_files import (
    AdoptedFiles,
    DamagedSegmentError,
    PooledWindow,
    RowPool,
    SegmentRows,
)
from megalith.embeddings.table_state import TableState

_BLOCK_BYTES = 16 << 20


class PoolReader:
    """The pools of a checkpoint, on their way into tables of this process."""

    def __init__(self, folder: Path, records: Sequence[PoolRecord], fix: str) -> None:
        self._folder, self._records, self._fix = folder, records, fix

    def adopt(self, tables: Mapping[str, TableState]) -> dict[RowPool, AdoptedFiles]:
        """Lets every new pool take the files that are its own, if there are such."""
        pools: dict[RowPool, dict[int, str]] = {}
        for path, table in tables.items():
            for shard in table.shards:
                if shard.files is not None:
                    pools.setdefault(shard.files.pool, {})[shard.files.number] = path
        adopted: dict[RowPool, AdoptedFiles] = {}
        for pool, paths in pools.items():
            record = next((each for each in self._records if _is_of(each, pool, paths)), None)
            if record is not None and pool.is_new:
                with self._damage():
                    adopted[pool] = pool.adopt(read_pool(self._folder, record, self._fix))
                # Of the same pool in all checkpoints of the run.
                pool.keep(self._folder.parent.glob(f"*/{record.name}/*.rows"))
        return adopted

    def load(self, tables: Mapping[str, TableState]) -> None:
        """Gives the rows of all pools to the tables that hold some of them."""
        for record in self._records:
            wanted = {
                number: tables[path]
                for number, (path, window) in enumerate(zip(record.paths, record.layout.tables, strict=True))
                if path is not None and path in tables and _holds(tables[path], window)
            }
            if wanted:
                for number, block in self._blocks(read_pool(self._folder, record, self._fix)):
                    if number in wanted:
                        wanted[number].load(block)

    def verify(self) -> None:
        """Reads every row; the sentence about a damaged file is raised."""
        for record in self._records:
            for _ in self._blocks(read_pool(self._folder, record, self._fix)):
                pass

    def _blocks(self, rows: SegmentRows) -> Iterator[tuple[int, RowBlock]]:
        with self._damage():
            yield from rows.blocks(_BLOCK_BYTES)

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedSegmentError as error:
            raise CheckpointError(f"Checkpoint file {error}; {self._fix}.") from error


def _is_of(record: PoolRecord, pool: RowPool, paths: Mapping[int, str]) -> bool:
    """Whether files hold exactly what a pool would: its tables, for the same tables of the checkpoint."""
    # A table without a path is a copy, as it is on all ranks but the one that has written it.
    same = all(path in (None, paths.get(number)) for number, path in enumerate(record.paths))
    return same and len(paths) == len(record.paths) and pool.layout.adopts(record.layout)


def _holds(table: TableState, window: PooledWindow) -> bool:
    """Whether a process may hold a row of a pool's table."""
    return any(shard.rows[0] < window.rows[1] and window.rows[0] < shard.rows[1] for shard in table.shards)
