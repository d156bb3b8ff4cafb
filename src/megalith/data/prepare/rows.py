"""The bookkeeping of a pass: numbers the rows in input order, ends at a limit, and accounts for bad rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megalith.core.errors import DataError
from megalith.data.readers import BadRow, LogBlock

_SHOWN_BAD_ROWS = 100


class NumberedBlock(NamedTuple):
    """Consecutive rows, and the number of the first of them in the input."""

    first_row: int
    block: LogBlock


@dataclass(slots=True)
class BadRows:
    """How many rows could not be read, and the first of them."""

    allowed: int
    count: int = 0
    first: list[BadRow] = field(default_factory=list)

    def add(self, bad: BadRow) -> None:
        """Counts one more bad row; raises a DataError once there are more than allowed."""
        self.count += 1
        if self.count > self.allowed:
            others = f" (More than {self.allowed} rows are bad.)" if self.allowed else ""
            raise DataError(
                f"{bad.file}, line {bad.line} {bad.problem}; correct it or pass --max-bad-rows to leave such "
                f"rows out.{others}"
            )
        if len(self.first) < _SHOWN_BAD_ROWS:
            self.first.append(bad)


class RowNumbers:
    """Numbers the rows of a source, block after block in input order."""

    def __init__(self, bad_rows: BadRows, limit: int | None, progress: Callable[[int], None]) -> None:
        self.num_rows = 0
        self._bad_rows = bad_rows
        self._limit = limit
        self._progress = progress

    @property
    def full(self) -> bool:
        """Whether the limit of rows is reached."""
        return self._limit is not None and self.num_rows >= self._limit

    def number(self, block: LogBlock) -> NumberedBlock:
        """Numbers the rows of the next block, and cuts it at the limit."""
        if self._limit is not None:
            # Independent of where blocks end: a bad row counts if a row within the limit follows it.
            room = self._limit - self.num_rows
            block = block.head(room)
            bad_rows = [bad for bad in block.bad_rows if bad.rows_before < room]
        else:
            bad_rows = list(block.bad_rows)
        for bad in bad_rows:
            self._bad_rows.add(bad)
        numbered = NumberedBlock(self.num_rows, block)
        self.num_rows += block.num_rows
        self._progress(self.num_rows)
        return numbered

    def until_full(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items up to the limit of rows."""
        for item in items:
            if self.full:
                return
            yield item
