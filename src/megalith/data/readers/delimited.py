"""Reads delimited text, such as Criteo's TSV and Avazu's CSV, as a `DelimitedFormat` describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megalith.core.errors import DataError, nearest
from megalith.data.readers.block import BadRow, Feature, LogBlock, Numeric, shown
from megalith.data.readers.event_time import EventTimeColumn, hour_seconds
from megalith.data.readers.formats import DelimitedFormat, TextColumn
from megalith.data.readers.key_texts import line_texts
from megalith.data.readers.streams import CHUNK_BYTES, TextChunk, read_chunks
from megalith.ops.text.rows import (
    PROBLEM_COLUMNS,
    ColumnPlan,
    ParseProblem,
    Role,
    parse_delimited,
    plan_columns,
)

_NUMBER_ROLES = {"log": Role.NUMBER_LOG, "bucket": Role.BUCKET, "none": Role.NUMBER}
_ROLES = {"label": Role.LABEL, "category": Role.CATEGORY, "hour": Role.HOUR, "skip": Role.SKIP}
_KIND, _ROWS_BEFORE = PROBLEM_COLUMNS.index("kind"), PROBLEM_COLUMNS.index("rows_before")
_HOUR_FEATURES = ("hour_of_day", "weekday")


class DelimitedChunk(NamedTuple):
    """A chunk of lines, and the columns as the header of its file orders them."""

    chunk: TextChunk
    columns: tuple[TextColumn, ...]
    plan: ColumnPlan


class DelimitedSource:
    """The rows of delimited text files, in the order of the files."""

    def __init__(
        self,
        text_format: DelimitedFormat,
        paths: Sequence[Path],
        numeric: Numeric = "log",
        missing_number: float = 0.0,
        chunk_bytes: int = CHUNK_BYTES,
        event_time: EventTimeColumn | None = None,
    ) -> None:
        self.text_format = text_format
        self._event_time = event_time
        self.paths = tuple(paths)
        self._numeric = numeric
        self._missing_number = missing_number
        self._chunk_bytes = chunk_bytes
        self._plan = plan_columns([self._role(column) for column in text_format.columns])

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the numeric columns."""
        if self._numeric == "bucket":
            return ()
        return tuple(column.name for column in self.text_format.columns if column.kind == "number")

    @property
    def features(self) -> tuple[Feature, ...]:
        """The categorical columns."""
        names: list[str] = []
        for column in self.text_format.columns:
            if column.kind == "hour":
                names += _HOUR_FEATURES
            elif column.kind == "category" or (column.kind == "number" and self._numeric == "bucket"):
                names.append(column.name)
        return tuple(Feature(name) for name in names)

    def items(self) -> Iterator[DelimitedChunk]:
        """Chunks of whole lines, with the columns as the file's header orders them."""
        for path in self.paths:
            columns, plan = self.text_format.columns, self._plan
            num_chunks = 0
            for chunk in read_chunks(path, self._chunk_bytes):
                if chunk.first_line == 1 and self.text_format.header:
                    header, _, _ = bytes(chunk.text[:65536]).partition(b"\n")
                    columns, plan = self._plan_for_header(path, header)
                    chunk = TextChunk(path, 2, chunk.text[len(header) + 1 :])
                num_chunks += 1
                yield DelimitedChunk(chunk, columns, plan)
            if num_chunks == 0:
                raise DataError(f"{path} is empty; leave it out or get it again.")

    def parse(self, item: DelimitedChunk) -> LogBlock:
        """The rows of one chunk."""
        chunk, columns, plan = item
        rows = parse_delimited(chunk.text, self.text_format.delimiter, plan, self._missing_number)
        bad = []
        for line, before, kind, field, offset, length in rows.problems.tolist():
            if kind == ParseProblem.FIELD_COUNT:
                problem = f"has {field} fields instead of {len(columns)}"
            else:
                token = shown(bytes(chunk.text[offset : offset + length]))
                problem = (
                    f"has {token} in field {field} ({columns[field - 1].name}), which is not {_MEANT[kind]}"
                )
            bad.append(BadRow(str(chunk.path), chunk.first_line + line, problem, before))
        times = None if self._event_time is None else self._times(item, rows.problems, self._event_time)
        return LogBlock(
            rows.labels,
            tuple(rows.numbers),
            tuple(rows.keys),
            tuple(bad),
            times,
            texts_of=line_texts(chunk.text, self.text_format.delimiter.encode()),
        )

    def _times(
        self, item: DelimitedChunk, problems: NDArray[np.int64], column: EventTimeColumn
    ) -> NDArray[np.int64]:
        """Event times of the rows of a chunk, from a second look at its one column of hours.

        It reads every line with the right number of fields; lines that `problems` leave out for another
        reason are dropped from it.
        """
        chunk, columns, _ = item
        roles = [Role.CATEGORY if each.name == column.name else Role.SKIP for each in columns]
        (keys,) = parse_delimited(chunk.text, self.text_format.delimiter, plan_columns(roles)).keys
        others = problems[problems[:, _KIND] != ParseProblem.FIELD_COUNT]
        # The n-th of them stands behind n others that are not among the rows.
        keys = np.delete(keys, others[:, _ROWS_BEFORE] + np.arange(len(others)))
        times = hour_seconds(keys)
        if (times < 0).any():
            raise DataError(
                f"{chunk.path}, lines {chunk.first_line} and after: a row has no value in column "
                f"{column.name}, the event time; correct it or leave out --event-time."
            )
        return times

    def chunk_of(self, chunk: TextChunk, header: str) -> DelimitedChunk:
        """Lines from the middle of a file, whose first line is `header` where the format has one."""
        if not self.text_format.header:
            return DelimitedChunk(chunk, self.text_format.columns, self._plan)
        return DelimitedChunk(chunk, *self._plan_for_header(chunk.path, header.encode()))

    def _role(self, column: TextColumn) -> Role:
        return _NUMBER_ROLES[self._numeric] if column.kind == "number" else _ROLES[column.kind]

    def _plan_for_header(self, path: Path, header: bytes) -> tuple[tuple[TextColumn, ...], ColumnPlan]:
        """The columns as this file's header orders them; each fills the same output column as ever."""
        names = (
            header.decode("utf-8", "replace")
            .removeprefix("\ufeff")
            .rstrip("\r")
            .split(self.text_format.delimiter)
        )
        expected = {column.name: index for index, column in enumerate(self.text_format.columns)}
        for name in names:
            if name not in expected:
                raise DataError(
                    f"{path}, line 1: column {shown(name.encode())} is not one of {self.text_format.name}; "
                    f"{nearest(name, list(expected))}"
                )
        for name in expected:
            if names.count(name) != 1:
                raise DataError(
                    f"{path}, line 1: the header names column '{name}' {names.count(name)} times instead of "
                    "once; correct it."
                )
        order = [expected[name] for name in names]
        columns = tuple(self.text_format.columns[index] for index in order)
        plan = plan_columns(
            [self._role(column) for column in columns], [int(self._plan.outputs[index]) for index in order]
        )
        return columns, plan


_MEANT = {
    ParseProblem.NOT_A_LABEL: "0 or 1",
    ParseProblem.NOT_A_NUMBER: "a number",
    ParseProblem.NOT_AN_HOUR: "an hour as YYMMDDHH",
}
