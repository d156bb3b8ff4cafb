"""CSV with quotes: where whole rows end, and rows to columns of text.

`csv_twin.py` holds the plain Python truth of each function here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native
from megalith.ops.text.rows import PROBLEM_COLUMNS


@dataclass(frozen=True, slots=True)
class CsvRows:
    """The chosen columns of some rows; `problems` has PROBLEM_COLUMNS for each row that could not be read."""

    lines: int
    data: NDArray[np.uint8]
    """The bytes of all fields, column after column."""
    offsets: NDArray[np.int64]
    """[columns, rows + 1]: where each field begins in `data`, and the column's end."""
    row_lines: NDArray[np.int64]
    """The line where each row begins, from 0."""
    problems: NDArray[np.int64]


def csv_whole_rows(text: bytes | bytearray | memoryview, delimiter: str) -> tuple[int, int]:
    """(bytes, lines) of the whole rows that a text begins with: to the last line feed outside of quotes."""
    data = np.frombuffer(text, np.uint8)
    totals = np.zeros(2, np.int64)
    native.library().mg_csv_whole_rows(data.ctypes.data, len(data), ord(delimiter), totals.ctypes.data)
    return int(totals[0]), int(totals[1])


def parse_csv(text: bytes | bytearray | memoryview, delimiter: str, outputs: Sequence[int]) -> CsvRows:
    """The rows of a text that begins at a row's start; every row must have as many fields as `outputs`.

    Field c of a row goes to column outputs[c]; -1 leaves it out.
    """
    source = np.frombuffer(text, np.uint8)
    capacity = int(np.count_nonzero(source == 10)) + 1
    targets = np.array(outputs, np.int32)
    num_outputs = int(targets.max(initial=-1)) + 1
    data = np.empty(max(len(source), 1), np.uint8)
    offsets = np.zeros((num_outputs, capacity + 1), np.int64)
    row_lines = np.empty(capacity, np.int64)
    problems = np.empty((capacity, len(PROBLEM_COLUMNS)), np.int64)
    totals = np.zeros(3, np.int64)
    native.library().mg_parse_csv(
        source.ctypes.data,
        len(source),
        ord(delimiter),
        targets.ctypes.data,
        len(targets),
        num_outputs,
        capacity,
        data.ctypes.data,
        offsets.ctypes.data,
        row_lines.ctypes.data,
        problems.ctypes.data,
        totals.ctypes.data,
    )
    lines, num_problems, rows = totals.tolist()
    return CsvRows(lines, data, offsets[:, : rows + 1], row_lines[:rows], problems[:num_problems].copy())
