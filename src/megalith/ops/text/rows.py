"""Rows of text to columns: delimited rows (Criteo, Avazu) and rows of entries (libFM, libFFM).

`rows_twin.py` holds the plain Python truth of each function here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native
from megalith.ops.text.keys import Keys


class Role(IntEnum):
    """What a column of a delimited row becomes."""

    SKIP = 0
    LABEL = 1
    NUMBER = 2
    NUMBER_LOG = 3
    """sign(x) * log(1 + |x|)"""
    BUCKET = 4
    """A categorical feature: floor(log(x)^2) + 3 above 2, else floor(x)."""
    CATEGORY = 5
    HOUR = 6
    """YYMMDDHH; two categorical features: hour of day (0-23) and weekday (0 is Monday)."""


class ParseProblem(IntEnum):
    """Why a row could not be read."""

    FIELD_COUNT = 1
    NOT_A_LABEL = 2
    NOT_A_NUMBER = 3
    NOT_AN_HOUR = 4
    NOT_AN_ENTRY = 5
    NOT_ONE = 6
    OPEN_QUOTE = 7


PROBLEM_COLUMNS = ("line", "rows_before", "kind", "field", "offset", "length")


@dataclass(frozen=True, slots=True)
class DelimitedRows:
    """The columns of a chunk; `problems` has PROBLEM_COLUMNS for each line that could not be read."""

    lines: int
    labels: NDArray[np.float32]
    numbers: NDArray[np.float32]
    """[numeric columns, rows]"""
    keys: Keys
    """[categorical columns, rows]"""
    problems: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EntryRows:
    """The entries of a chunk: row r holds [row_ends[r-1], row_ends[r]) of `keys` and `fields`."""

    lines: int
    labels: NDArray[np.float32]
    row_ends: NDArray[np.int64]
    fields: NDArray[np.int32]
    """The field named in the text (libFFM), or the position in the row from 0 (libFM)."""
    keys: Keys
    problems: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """For each column of a row its role and the output column it fills; HOUR fills two."""

    roles: NDArray[np.int32]
    outputs: NDArray[np.int32]
    num_numbers: int
    num_keys: int


def plan_columns(roles: Sequence[Role], outputs: Sequence[int] | None = None) -> ColumnPlan:
    """Output columns in the order of the roles, or as `outputs` says."""
    numbers = keys = 0
    counted = []
    for role in roles:
        if role in (Role.NUMBER, Role.NUMBER_LOG):
            counted.append(numbers)
            numbers += 1
        elif role in (Role.BUCKET, Role.CATEGORY, Role.HOUR):
            counted.append(keys)
            keys += 2 if role is Role.HOUR else 1
        else:
            counted.append(0)
    return ColumnPlan(
        np.array(roles, np.int32), np.array(counted if outputs is None else outputs, np.int32), numbers, keys
    )


def parse_delimited(
    text: bytes | bytearray | memoryview, delimiter: str, plan: ColumnPlan, missing_number: float = 0.0
) -> DelimitedRows:
    """The rows of a chunk that begins at a line start; every line must have as many fields as the plan."""
    data = np.frombuffer(text, np.uint8)
    capacity = int(np.count_nonzero(data == 10)) + 1
    labels = (
        np.zeros(capacity, np.float32) if Role.LABEL not in plan.roles else np.empty(capacity, np.float32)
    )
    numbers = np.empty((plan.num_numbers, capacity), np.float32)
    keys = np.empty((plan.num_keys, capacity), np.uint64)
    problems = np.empty((capacity, len(PROBLEM_COLUMNS)), np.int64)
    totals = np.zeros(3, np.int64)
    native.library().mg_parse_delimited(
        data.ctypes.data,
        len(data),
        ord(delimiter),
        plan.roles.ctypes.data,
        plan.outputs.ctypes.data,
        len(plan.roles),
        missing_number,
        capacity,
        labels.ctypes.data,
        numbers.ctypes.data,
        keys.ctypes.data,
        problems.ctypes.data,
        totals.ctypes.data,
    )
    lines, num_problems, rows = totals.tolist()
    return DelimitedRows(
        lines, labels[:rows], numbers[:, :rows], keys[:, :rows], problems[:num_problems].copy()
    )


def parse_entries(
    text: bytes | bytearray | memoryview, with_fields: bool = False, row_entries: int | None = None
) -> EntryRows:
    """The rows of a libFM chunk (`label index:value ...`), or libFFM with fields (`field:index:value`).

    `row_entries` is how many entries every row must have; None allows any number.
    """
    data = np.frombuffer(text, np.uint8)
    capacity = int(np.count_nonzero(data == 10)) + 1
    most_entries = int(np.count_nonzero(data == ord(":"))) + 1
    labels = np.empty(capacity, np.float32)
    row_ends = np.empty(capacity, np.int64)
    fields = np.empty(most_entries, np.int32)
    keys = np.empty(most_entries, np.uint64)
    problems = np.empty((capacity, len(PROBLEM_COLUMNS)), np.int64)
    totals = np.zeros(4, np.int64)
    native.library().mg_parse_entries(
        data.ctypes.data,
        len(data),
        2 if with_fields else 1,
        -1 if row_entries is None else row_entries,
        labels.ctypes.data,
        row_ends.ctypes.data,
        fields.ctypes.data,
        keys.ctypes.data,
        problems.ctypes.data,
        totals.ctypes.data,
    )
    lines, num_problems, rows, entries = totals.tolist()
    return EntryRows(
        lines,
        labels[:rows],
        row_ends[:rows],
        fields[:entries],
        keys[:entries],
        problems[:num_problems].copy(),
    )
