"""`BlockQueue`: rows on their way from the thread that trains to the one that writes, of bounded size.

The trainer puts, and waits where more than the bound would lie here; the writer takes. Whoever fails says so,
and the other one hears of it: a writer that is gone lets the trainer run on, an error of the trainer comes to
the writer in the place of blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from megalith.embeddings.row_block import RowBlock


class TableBlock(NamedTuple):
    """Rows of a table that are to be written."""

    table: str
    block: RowBlock
    sparse: bool
    deleted: bool = False
    """Whether the ids have a row no more."""

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        ids = self.block.ids
        parts = [*self.block.parts.values(), *([ids] if isinstance(ids, Tensor) else [])]
        return sum(part.numel() * part.element_size() for part in parts)


class BlockQueue:
    """First in, first out; at most `max_bytes` wait, or one block that is larger."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._bytes = max_bytes, 0
        self._blocks: deque[TableBlock] = deque()
        self._changed = threading.Condition()
        self._is_complete = self._is_abandoned = False
        self._error: BaseException | None = None
        self.peak_bytes = 0
        """The most that waited here."""

    def put(self, block: TableBlock) -> None:
        """Adds a block, when there is room; nothing happens once the writer is gone."""
        size = block.bytes
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_abandoned or not self._blocks or self._bytes + size <= self.max_bytes
            )
            if not self._is_abandoned:
                self._blocks.append(block)
                self._bytes += size
                self.peak_bytes = max(self.peak_bytes, self._bytes)
                self._changed.notify_all()

    def complete(self, error: BaseException | None = None) -> None:
        """No block follows: all were put, or an error came between."""
        with self._changed:
            self._is_complete, self._error = True, error
            self._changed.notify_all()

    def abandon(self) -> None:
        """The writer takes no more."""
        with self._changed:
            self._is_abandoned = True
            self._blocks.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[TableBlock]:
        """All blocks, as they come; raises the error that came in their place."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._blocks or self._is_complete)
                if self._error is not None:
                    raise self._error
                if not self._blocks:
                    return
                block = self._blocks.popleft()
                self._bytes -= block.bytes
                self._changed.notify_all()
            yield block
