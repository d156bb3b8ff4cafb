"""`CopiedShard`: live chunks as they were, for a checkpoint that is written while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megalith.embeddings.row_block import PartSpec, RowBlock
from megalith.embeddings.stores.adaptive.live_rows import row_blocks
from megalith.embeddings.stores.row_files import Holds, PoolTable
from megalith.ops.chunks.blocks import ChunkedBlock
from megalith.ops.stores.start_values import StartValues

if TYPE_CHECKING:
    from megalith.embeddings.stores.adaptive.shard import AdaptiveShard


@dataclass(frozen=True)
class CopiedShard:
    """The live chunks of a table as they were: to be read, not changed."""

    live: AdaptiveShard
    copies: tuple[ChunkedBlock, ...]
    writes: bool = True
    sparse: bool = True
    files: PoolTable | None = None

    @property
    def start(self) -> StartValues:
        """How chunks begin."""
        return self.live.start

    @property
    def rows(self) -> tuple[int, int]:
        """First row, and the one behind the last."""
        return self.live.rows

    @property
    def columns(self) -> tuple[int, int]:
        """First column, and the one behind the last."""
        return self.live.columns

    @property
    def specs(self) -> dict[str, PartSpec]:
        """The parts that every store keeps."""
        return self.live.specs

    @property
    def chunk(self) -> int:
        """Columns of a chunk."""
        return self.live.chunk

    def blocks(self, max_bytes: int) -> Iterator[RowBlock]:
        """The rows that had chunks."""
        del max_bytes
        for block in self.copies:
            yield from row_blocks(block, self.live.pool.shape, self.rows[0])

    def load(self, block: RowBlock) -> int:
        """Refused: it is a record of what was."""
        raise TypeError(f"rows {self.rows} are held to be saved, not to be loaded")

    def reset(self) -> None:
        """Refused as well."""
        raise TypeError(f"rows {self.rows} are held to be saved, not to be reset")

    def clear(self) -> None:
        """Refused as well."""
        self.reset()

    def snapshot(self, holds: Holds, copy: bool) -> CopiedShard:
        """Itself: nothing changes it."""
        del holds, copy
        return self
