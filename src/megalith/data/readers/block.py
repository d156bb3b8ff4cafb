"""What every reader yields: a block of rows as columns of labels, numbers and keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from megalith.data.readers.key_texts import TextsOf
from megalith.ops.text.keys import Keys

Numeric = Literal["log", "bucket", "none"]
"""What becomes of numbers: log is sign(x) * log(1 + |x|); bucket a categorical feature of floor(log(x)^2)."""


class BadRow(NamedTuple):
    """A row that could not be read."""

    file: str
    line: int
    problem: str
    """What is wrong, to stand after "line N"."""
    rows_before: int
    """Good rows of the block before it."""


@dataclass(frozen=True, slots=True)
class Bag:
    """The keys of a multi-hot feature: row r holds keys[row_ends[r-1] : row_ends[r]]."""

    keys: Keys
    row_ends: NDArray[np.int64]

    def take(self, rows: NDArray[np.bool_]) -> Bag:
        """The rows that the mask chooses."""
        lengths = np.diff(self.row_ends, prepend=0)
        return Bag(self.keys[np.repeat(rows, lengths)], np.cumsum(lengths[rows]))

    def head(self, rows: int) -> Bag:
        """The first rows."""
        ends = self.row_ends[:rows]
        return Bag(self.keys[: ends[-1] if rows else 0], ends)

    def cut(self, most: int, keep: Literal["last", "first"]) -> Bag:
        """At most so many keys of each row.

        >>> Bag(np.array([5, 6, 7], np.uint64), np.array([3])).cut(2, "last").keys.tolist()
        [6, 7]
        """
        lengths = np.diff(self.row_ends, prepend=0)
        if lengths.max(initial=0) <= most:
            return self
        starts = self.row_ends - lengths
        places = np.arange(len(self.keys)) - np.repeat(starts, lengths)
        first = np.maximum(lengths - most, 0) if keep == "last" else np.zeros_like(lengths)
        from_first = places - np.repeat(first, lengths)
        return Bag(
            self.keys[(from_first >= 0) & (from_first < most)],
            np.cumsum(np.minimum(lengths, most)),
        )


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Consecutive rows of a source, in input order."""

    labels: NDArray[np.float32]
    numbers: tuple[NDArray[np.float32], ...]
    keys: tuple[Keys | Bag, ...]
    """One column for each feature of the source."""
    bad_rows: tuple[BadRow, ...] = ()
    times: NDArray[np.int64] | None = None
    """Event times in seconds, where they were asked for."""
    weights: NDArray[np.float32] | None = None
    """Sample weights, where there are any."""
    texts_of: TextsOf | None = None
    """Finds the texts of hashed keys that occur in these rows."""

    @property
    def num_rows(self) -> int:
        """Rows that could be read."""
        return len(self.labels)

    def head(self, rows: int) -> LogBlock:
        """The first rows, and the bad rows that stand before the last of them."""
        if rows >= self.num_rows:
            return self
        return replace(
            self,
            labels=self.labels[:rows],
            numbers=tuple(column[:rows] for column in self.numbers),
            keys=tuple(
                column.head(rows) if isinstance(column, Bag) else column[:rows] for column in self.keys
            ),
            bad_rows=tuple(bad for bad in self.bad_rows if bad.rows_before < rows),
            times=None if self.times is None else self.times[:rows],
            weights=None if self.weights is None else self.weights[:rows],
        )


class Feature(NamedTuple):
    """A categorical column of a source."""

    name: str
    multi_hot: bool = False


class LogSource(Protocol):
    """Rows of one or several files, as `data prepare` reads them.

    `items` is read by one thread at a time; `parse` runs in any thread.
    """

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the numeric columns."""

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns."""

    def items(self) -> Iterator[Any]:
        """Raw pieces of the files, in order."""

    def parse(self, item: Any) -> LogBlock:
        """The rows of one piece."""


def shown(token: bytes) -> str:
    """A piece of the input as an error message shows it."""
    text = token[:24].decode("ascii", "backslashreplace")
    return f"'{text}{'...' if len(token) > 24 else ''}'"
