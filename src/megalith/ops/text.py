"""Text to columns, keys to counts and ids: facades over csrc/text_*.cpp, on numpy arrays and without torch.

A key stands for a categorical value in 64 bits: a token of at most 8 bytes packed as it is, or a 63-bit hash
with the top bit set; 0 is a missing value. `text_twins` holds the plain Python truth of each function here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from megalith.ops import native

Keys = NDArray[np.uint64]
HASHED_KEY = 1 << 63


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


class Problem(IntEnum):
    """Why a row could not be read."""

    FIELD_COUNT = 1
    NOT_A_LABEL = 2
    NOT_A_NUMBER = 3
    NOT_AN_HOUR = 4
    NOT_AN_ENTRY = 5
    NOT_ONE = 6


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
    slots: NDArray[np.int32]
    num_numbers: int
    num_keys: int


def plan_columns(roles: Sequence[Role], slots: Sequence[int] | None = None) -> ColumnPlan:
    """Output columns in the order of the roles, or as `slots` says."""
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
        np.array(roles, np.int32), np.array(counted if slots is None else slots, np.int32), numbers, keys
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
        plan.slots.ctypes.data,
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


def token_keys(text: bytes | memoryview, offsets: NDArray[np.int64]) -> Keys:
    """The key of each token text[offsets[i] : offsets[i + 1]]."""
    data = np.frombuffer(text, np.uint8)
    offsets = np.ascontiguousarray(offsets, np.int64)
    keys = np.empty(len(offsets) - 1, np.uint64)
    native.library().mg_token_keys(data.ctypes.data, offsets.ctypes.data, len(keys), keys.ctypes.data)
    return keys


def hash_keys(keys: Keys, num_buckets: int) -> NDArray[np.int32]:
    """Ids without a vocabulary: 2 + mix64(key) mod num_buckets; 0 for a missing value."""
    keys = np.ascontiguousarray(keys)
    ids = np.empty(len(keys), np.int32)
    native.library().mg_hash_keys(keys.ctypes.data, len(keys), num_buckets, ids.ctypes.data)
    return ids


class KeyCounter:
    """Counts the keys of several features within a byte budget; what does not fit is spilled to `folder`.

    Any number of threads may add at once. The memory is given back by `close` or at the end of a `with`.
    """

    def __init__(self, num_features: int, budget_bytes: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle = ctypes.c_void_p()
        native.library().mg_count_create(
            num_features, budget_bytes, os.fsencode(folder), ctypes.addressof(handle)
        )
        self._handle: int | None = handle.value

    def add(self, feature: int, keys: Keys, chosen: NDArray[np.bool_] | None = None) -> None:
        """Counts the keys, or those `chosen`; missing values are not counted."""
        keys = np.ascontiguousarray(keys)
        mask = None if chosen is None else np.ascontiguousarray(chosen)
        native.library().mg_count_add(
            self._handle, feature, keys.ctypes.data, None if mask is None else mask.ctypes.data, len(keys)
        )

    def finish(self, feature: int, path: Path, min_count: int = 1, max_size: int | None = None) -> int:
        """Writes (key, count) pairs of uint64 by falling count, ties by key; the number of them."""
        written = ctypes.c_int64(0)
        native.library().mg_count_finish(
            self._handle, feature, min_count, max_size or 0, os.fsencode(path), ctypes.addressof(written)
        )
        return written.value

    @property
    def num_spills(self) -> int:
        return native.library().mg_count_num_spills(self._handle)

    def close(self) -> None:
        if self._handle is not None:
            native.library().mg_count_destroy(self._handle)
            self._handle = None

    def __enter__(self) -> KeyCounter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyLookup:
    """A vocabulary as a hash table: known keys map to the ids they were inserted with, others to 1, 0 to 0.

    With `file` the table lies in a mapped file (unlinked at once), which the kernel may evict from memory.
    """

    def __init__(self, num_entries: int, file: Path | None = None) -> None:
        handle = ctypes.c_void_p()
        native.library().mg_lookup_create(
            num_entries, None if file is None else os.fsencode(file), ctypes.addressof(handle)
        )
        self._handle: int | None = handle.value

    @staticmethod
    def table_bytes(num_entries: int) -> int:
        return native.library().mg_lookup_bytes(num_entries)

    def insert(self, keys: Keys, first_id: int) -> None:
        """Gives the keys the ids first_id, first_id + 1, ...; no more keys in all than were announced."""
        keys = np.ascontiguousarray(keys)
        native.library().mg_lookup_insert(self._handle, keys.ctypes.data, len(keys), first_id)

    def map(self, keys: Keys) -> NDArray[np.int32]:
        keys = np.ascontiguousarray(keys)
        ids = np.empty(len(keys), np.int32)
        native.library().mg_lookup_map(self._handle, keys.ctypes.data, len(keys), ids.ctypes.data)
        return ids

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            native.library().mg_lookup_destroy(self._handle)
            self._handle = None
