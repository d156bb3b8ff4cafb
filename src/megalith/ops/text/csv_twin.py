"""The plain Python truth of `megalith.ops.text.csv`: slow, short, and held against it by property tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from megalith.ops.text.csv import CsvRows
from megalith.ops.text.rows import PROBLEM_COLUMNS, ParseProblem


class CsvRowTwin(NamedTuple):
    """One row of a text, empty lines included."""

    begin: int
    end: int
    """Behind its line feed, if it has one."""
    fields: list[bytes]
    is_empty: bool
    is_whole: bool
    """Whether it has a line feed."""
    open_quote: bool


def csv_rows_twin(text: bytes, delimiter: str) -> Iterator[CsvRowTwin]:
    """Every row of a text."""
    at = 0
    while at < len(text):
        begin, fields = at, []
        open_quote = quoted = False
        while True:
            field = b""
            quoted = text[at : at + 1] == b'"'
            if quoted:
                at += 1
                while at < len(text) and (text[at : at + 1] != b'"' or text[at : at + 2] == b'""'):
                    at += 1 + (text[at : at + 2] == b'""')
                    field += text[at - 1 : at]
                open_quote = at >= len(text)
                at += 1
            rest = b""
            while at < len(text) and text[at : at + 1] not in (delimiter.encode(), b"\n"):
                rest += text[at : at + 1]
                at += 1
            if text[at : at + 1] != delimiter.encode() and rest.endswith(b"\r"):
                rest = rest[:-1]
            fields.append(field + rest)
            if text[at : at + 1] != delimiter.encode():
                break
            at += 1
        is_whole = at < len(text) and not open_quote
        at += 1
        yield CsvRowTwin(
            begin, min(at, len(text)), fields, fields == [b""] and not quoted, is_whole, open_quote
        )


def csv_whole_rows_twin(text: bytes, delimiter: str) -> tuple[int, int]:
    """The plain truth of `csv_whole_rows`."""
    end = 0
    for row in csv_rows_twin(text, delimiter):
        if row.is_whole:
            end = row.end
    return end, text[:end].count(b"\n")


def parse_csv_twin(text: bytes, delimiter: str, outputs: Sequence[int]) -> CsvRows:
    """The plain truth of `parse_csv`."""
    columns: list[list[bytes]] = [[] for _ in range(max(outputs, default=-1) + 1)]
    row_lines: list[int] = []
    problems: list[tuple[int, ...]] = []
    for row in csv_rows_twin(text, delimiter):
        if row.is_empty:
            continue
        line = text[: row.begin].count(b"\n")
        if row.open_quote or len(row.fields) != len(outputs):
            kind = ParseProblem.OPEN_QUOTE if row.open_quote else ParseProblem.FIELD_COUNT
            problems.append((line, len(row_lines), kind, len(row.fields), row.begin, 0))
            continue
        row_lines.append(line)
        for output, field in zip(outputs, row.fields, strict=True):
            if output >= 0:
                columns[output].append(field)
    lengths = [len(field) for column in columns for field in column]
    ends = np.cumsum([0, *lengths])
    rows = len(row_lines)
    offsets = [ends[number * rows : (number + 1) * rows + 1] for number in range(len(columns))]
    return CsvRows(
        text.count(b"\n") + (not text.endswith(b"\n") and len(text) > 0),
        np.frombuffer(b"".join(field for column in columns for field in column), np.uint8),
        np.array(offsets, np.int64).reshape(len(columns), rows + 1),
        np.array(row_lines, np.int64),
        np.array(problems, np.int64).reshape(-1, len(PROBLEM_COLUMNS)),
    )
