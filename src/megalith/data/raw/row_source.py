"""What every source of raw rows gives, and the one sentence about a row that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from megalith.core.errors import DataError
from megalith.data.loader.columns import WindowColumns
from megalith.data.readers import BadRow, LogBlock


class RawBlock(NamedTuple):
    """Consecutive rows, and the columns of them that go with their scores."""

    rows: LogBlock | WindowColumns
    kept: pa.RecordBatch | None

    @property
    def num_rows(self) -> int:
        """Rows of the block."""
        return self.rows.num_rows if isinstance(self.rows, LogBlock) else self.rows.rows


class RowSource(Protocol):
    """Raw rows in their order. `items` is read by one thread at a time; `parse` runs in any thread."""

    def items(self) -> Iterator[Any]:
        """Pieces of the input."""

    def parse(self, item: Any) -> RawBlock:
        """The rows of a piece; a DataError names the first that cannot be read."""


def refuse_bad_rows(bad: tuple[BadRow, ...], unit: str = "row") -> None:
    """Raises for the first row that cannot be read, if there is one: every row is to have a score."""
    if bad:
        raise DataError(f"{bad[0].file}, {unit} {bad[0].line} {bad[0].problem}; correct it and run again.")


def refuse_empty(where: str) -> DataError:
    """The sentence about a file without rows."""
    return DataError(f"{where} is empty; leave it out or get it again.")
