"""The plain Python truth of `megalith.ops.text`: slow, short, and checked against it by property tests."""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from megalith.ops.text import (
    HASHED_KEY,
    PROBLEM_COLUMNS,
    ColumnPlan,
    DelimitedRows,
    EntryRows,
    Keys,
    Problem,
    Role,
)

_MASK = (1 << 64) - 1
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def mix64_twin(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def token_key_twin(token: bytes) -> int:
    """One token's key."""
    packed = int.from_bytes(token, "little")
    if not token or (len(token) <= 8 and packed < HASHED_KEY and token[-1] != 0):
        return packed
    state = len(token) * 0x9E3779B97F4A7C15 & _MASK
    for at in range(0, len(token), 8):
        state = mix64_twin(state ^ int.from_bytes(token[at : at + 8], "little"))
    return state | HASHED_KEY


def token_keys_twin(text: bytes, offsets: Sequence[int] | NDArray[np.int64]) -> Keys:
    pairs = itertools.pairwise(offsets)
    return np.array([token_key_twin(text[begin:end]) for begin, end in pairs], np.uint64)


def number_twin(token: bytes) -> float | None:
    """A finite decimal number, or None."""
    if not _NUMBER.fullmatch(token):
        return None
    number = float(token)
    return number if math.isfinite(number) else None


def signed_log_twin(number: float) -> float:
    return math.copysign(math.log1p(abs(number)), number)


def log_bucket_twin(number: float) -> int:
    if number > 2:
        return math.floor(math.log(number) * math.log(number)) + 3
    return max(math.floor(number), -9999999)


def parse_delimited_twin(
    text: bytes, delimiter: str, plan: ColumnPlan, missing_number: float = 0.0
) -> DelimitedRows:
    labels: list[float] = []
    numbers: list[list[float]] = []
    keys: list[list[int]] = []
    problems: list[tuple[int, ...]] = []
    roles = [Role(role) for role in plan.roles.tolist()]
    lines = _lines(text)
    for line_number, (start, line) in enumerate(lines):
        if not line:
            continue
        tokens = line.split(delimiter.encode())
        if len(tokens) != len(roles):
            last = start + len(line) - len(tokens[-1])
            problems.append((line_number, len(labels), Problem.FIELD_COUNT, len(tokens), last, 0))
            continue
        label, row_numbers, row_keys = 0.0, [0.0] * plan.num_numbers, [0] * plan.num_keys
        offset, problem = start, None
        for field, (token, role, slot) in enumerate(zip(tokens, roles, plan.slots.tolist(), strict=True)):
            kind = None
            if role is Role.LABEL:
                label_value = _label(token, signed=False)
                label, kind = (0.0, Problem.NOT_A_LABEL) if label_value is None else (label_value, None)
            elif role is Role.CATEGORY:
                row_keys[slot] = token_key_twin(token)
            elif role in (Role.NUMBER, Role.NUMBER_LOG):
                row_numbers[slot], kind = _numeric(token, role, missing_number)
            elif role is Role.BUCKET and token:
                number = number_twin(token)
                if number is None:
                    kind = Problem.NOT_A_NUMBER
                else:
                    row_keys[slot] = token_key_twin(str(log_bucket_twin(number)).encode())
            elif role is Role.HOUR and token:
                found = _hour(token)
                if found is None:
                    kind = Problem.NOT_AN_HOUR
                else:
                    row_keys[slot], row_keys[slot + 1] = (token_key_twin(str(one).encode()) for one in found)
            if kind is not None:
                problem = (line_number, len(labels), kind, field + 1, offset, len(token))
                break
            offset += len(token) + 1
        if problem:
            problems.append(problem)
            continue
        labels.append(label)
        numbers.append(row_numbers)
        keys.append(row_keys)
    return DelimitedRows(
        len(lines),
        np.array(labels, np.float32),
        np.array(numbers, np.float32).reshape(len(labels), plan.num_numbers).T,
        np.array(keys, np.uint64).reshape(len(labels), plan.num_keys).T,
        np.array(problems, np.int64).reshape(-1, len(PROBLEM_COLUMNS)),
    )


def parse_entries_twin(text: bytes, with_fields: bool = False, row_entries: int | None = None) -> EntryRows:
    labels: list[float] = []
    row_ends: list[int] = []
    fields: list[int] = []
    keys: list[int] = []
    problems: list[tuple[int, ...]] = []
    lines = _lines(text)
    for line_number, (start, line) in enumerate(lines):
        tokens = list(re.finditer(rb"[^ \t]+", line))
        if not tokens:
            continue
        row: list[tuple[int, int]] = []
        label = _label(tokens[0][0], signed=True)
        kind: Problem | None = Problem.NOT_A_LABEL if label is None else None
        at = 0
        while kind is None and at + 1 < len(tokens):
            at += 1
            kind = _entry(tokens[at][0], at - 1, with_fields, row)
        if kind is not None:
            where = start + tokens[at].start()
            problems.append((line_number, len(labels), kind, at + 1, where, len(tokens[at][0])))
            continue
        if row_entries is not None and len(row) != row_entries:
            problems.append((line_number, len(labels), Problem.FIELD_COUNT, len(tokens), start, 0))
            continue
        labels.append(label or 0.0)
        fields += [field for field, _ in row]
        keys += [key for _, key in row]
        row_ends.append(len(keys))
    return EntryRows(
        len(lines),
        np.array(labels, np.float32),
        np.array(row_ends, np.int64),
        np.array(fields, np.int32),
        np.array(keys, np.uint64),
        np.array(problems, np.int64).reshape(-1, len(PROBLEM_COLUMNS)),
    )


def count_keys_twin(
    keys: Iterable[int], min_count: int = 1, max_size: int | None = None
) -> list[tuple[int, int]]:
    """(key, count) by falling count, ties by key; missing values are not counted."""
    counts = Counter(key for key in keys if key)
    kept = [(key, count) for key, count in counts.items() if count >= min_count]
    return sorted(kept, key=lambda entry: (-entry[1], entry[0]))[:max_size]


def map_keys_twin(vocabulary: dict[int, int], keys: Iterable[int]) -> NDArray[np.int32]:
    return np.array([vocabulary.get(key, 1) if key else 0 for key in keys], np.int32)


def hash_keys_twin(keys: Iterable[int], num_buckets: int) -> NDArray[np.int32]:
    return np.array([2 + mix64_twin(key) % num_buckets if key else 0 for key in keys], np.int32)


def _lines(text: bytes) -> list[tuple[int, bytes]]:
    """Each line with its byte offset; a last line feed begins no further line."""
    lines, start = [], 0
    parts = text.split(b"\n")
    for line in parts[:-1] if parts[-1] == b"" else parts:
        lines.append((start, line[:-1] if line.endswith(b"\r") else line))
        start += len(line) + 1
    return lines


def _label(token: bytes, signed: bool) -> float | None:
    number = number_twin(token)
    if signed and number == -1:
        return 0.0
    return abs(number) if number in (0, 1) else None


def _numeric(token: bytes, role: Role, missing_number: float) -> tuple[float, Problem | None]:
    if not token:
        return missing_number, None
    number = number_twin(token)
    if number is None:
        return 0.0, Problem.NOT_A_NUMBER
    value = number if role is Role.NUMBER else signed_log_twin(number)
    with np.errstate(over="ignore"):
        return value, None if np.isfinite(np.float32(value)) else Problem.NOT_A_NUMBER


def _hour(token: bytes) -> tuple[int, int] | None:
    if not re.fullmatch(rb"\d{8}", token):
        return None
    year, month, day, hour = (int(token[at : at + 2]) for at in range(0, 8, 2))
    try:
        moment = datetime.datetime(2000 + year, month, day, hour)
    except ValueError:
        return None
    return moment.hour, moment.weekday()


def _entry(token: bytes, position: int, with_fields: bool, row: list[tuple[int, int]]) -> Problem | None:
    field = position
    if with_fields:
        head, separator, token = token.partition(b":")
        if not separator or not re.fullmatch(rb"\d+|-0+", head) or int(head) >= 1 << 31:
            return Problem.NOT_AN_ENTRY
        field = int(head)
    index, separator, value = token.partition(b":")
    number = number_twin(value)
    if not index or not separator or number is None:
        return Problem.NOT_AN_ENTRY
    if number != 1:
        return Problem.NOT_ONE
    row.append((field, token_key_twin(index)))
    return None
