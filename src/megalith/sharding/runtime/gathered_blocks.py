"""Blocks of rows that lie on many workers, for all of them: what an export of ids gives."""

from __future__ import annotations

from collections.abc import Iterator

from megalith.comm.ranks import Ranks
from megalith.embeddings.row_block import RowBlock


def gathered_blocks(own: Iterator[RowBlock], ranks: Ranks) -> Iterator[RowBlock]:
    """A block of every worker at a time, in the order of workers, until none has any; all of them iterate."""
    while True:
        blocks = ranks.from_each(lambda: next(own, None))
        found = [block for block in blocks if block is not None]
        if not found:
            return
        yield from found
