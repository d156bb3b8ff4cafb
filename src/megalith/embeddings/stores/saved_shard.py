"""`SavedShard`: a rectangle of a table as it was, for a checkpoint that is written while training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from megalith.embeddings.row_block import PartSpec, RowBlock
from megalith.embeddings.stores.row_files import Holds, PoolTable
from megalith.embeddings.table_state import TableShard
from megalith.ops.stores.start_values import StartValues

LiveShard = TypeVar("LiveShard", bound=TableShard)


@dataclass(frozen=True)
class SavedShard(Generic[LiveShard]):
    """What is left of `live` at one moment: to be read, not changed. Stores say how its `blocks` are read."""

    live: LiveShard

    @property
    def writes(self) -> bool:
        """It was taken to be written."""
        return True

    @property
    def sparse(self) -> bool:
        """Whether `blocks` leaves rows out."""
        return self.live.sparse

    @property
    def chunk(self) -> int | None:
        """Columns of a chunk, where rows are cut into some."""
        return self.live.chunk

    @property
    def start(self) -> StartValues | None:
        """How rows begin."""
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
    def specs(self) -> Mapping[str, PartSpec]:
        """The parts that it keeps."""
        return self.live.specs

    @property
    def touched(self) -> None:
        """It does not change."""
        return

    @property
    def files(self) -> PoolTable | None:
        """The pool whose files are held, where rows are in files."""
        return self.live.files

    def load(self, block: RowBlock) -> int:
        """Refused: it is a record of what was."""
        raise TypeError(f"rows {self.rows} are held to be saved, not to be loaded")

    def reset(self) -> None:
        """Refused as well."""
        raise TypeError(f"rows {self.rows} are held to be saved, not to be reset")

    def clear(self) -> None:
        """Refused as well."""
        self.reset()

    def snapshot(self, holds: Holds, copy: bool) -> Self:
        """Itself: nothing changes it."""
        del holds, copy
        return self
