"""The plain Python truth of `megalith.ops.text.rows`: slow, short, and held against it by property tests."""

from __future__ import annotations

import datetime
import math
import re

import numpy as np

from megalith.ops.text.keys_twin import token_key_twin
from megalith.ops.text.rows import (
    PROBLEM_COLUMNS,
    ColumnPlan,
    DelimitedRows,
    EntryRows,
    ParseProblem,
    Role,
)

_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number_twin(token: bytes) -> float | None:
    """A finite decimal number, or None."""
    if not _NUMBER.fullmatch(token):
        return None
    number = float(token)
    return number if math.isfinite(number) else None


def signed_log_twin(number: float) -> float:
    """sign(x) * log(1 + |x|)."""
    return math.copysign(math.log1p(abs(number)), number)


def log_bucket_twin(number: float) -> int:
    """floor(log(x)^2) + 3 above 2, else floor(x)."""
    if number > 2:
        return math.floor(math.log(number) * math.log(number)) + 3
    return max(math.floor(number), -9999999)


def parse_delimited_twin(
    text: bytes, delimiter: str, plan: ColumnPlan, missing_number: float = 0.0
) -> DelimitedRows:
    """The plain truth of `parse_delimited`."""
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
            problems.append((line_number, len(labels), ParseProblem.FIELD_COUNT, len(tokens), last, 0))
            continue
        label, row_numbers, row_keys = 0.0, [0.0] * plan.num_numbers, [0] * plan.num_keys
        offset, problem = start, None
        for field, (token, role, output) in enumerate(zip(tokens, roles, plan.outputs.tolist(), strict=True)):
            kind = None
            if role is Role.LABEL:
                label_value = _label(token, signed=False)
                label, kind = (0.0, ParseProblem.NOT_A_LABEL) if label_value is None else (label_value, None)
            elif role is Role.CATEGORY:
                row_keys[output] = token_key_twin(token)
            elif role in (Role.NUMBER, Role.NUMBER_LOG):
                row_numbers[output], kind = _numeric(token, role, missing_number)
            elif role is Role.BUCKET and token:
                number = number_twin(token)
                if number is None:
                    kind = ParseProblem.NOT_A_NUMBER
                else:
                    row_keys[output] = token_key_twin(str(log_bucket_twin(number)).encode())
            elif role is Role.HOUR and token:
                moment = _hour(token)
                if moment is None:
                    kind = ParseProblem.NOT_AN_HOUR
                else:
                    row_keys[output], row_keys[output + 1] = (
                        token_key_twin(str(part).encode()) for part in moment
                    )
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
    """The plain truth of `parse_entries`."""
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
        kind: ParseProblem | None = ParseProblem.NOT_A_LABEL if label is None else None
        at = 0
        while kind is None and at + 1 < len(tokens):
            at += 1
            kind = _entry(tokens[at][0], at - 1, with_fields, row)
        if kind is not None:
            where = start + tokens[at].start()
            problems.append((line_number, len(labels), kind, at + 1, where, len(tokens[at][0])))
            continue
        if row_entries is not None and len(row) != row_entries:
            problems.append((line_number, len(labels), ParseProblem.FIELD_COUNT, len(tokens), start, 0))
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


def _numeric(token: bytes, role: Role, missing_number: float) -> tuple[float, ParseProblem | None]:
    if not token:
        return missing_number, None
    number = number_twin(token)
    if number is None:
        return 0.0, ParseProblem.NOT_A_NUMBER
    value = number if role is Role.NUMBER else signed_log_twin(number)
    with np.errstate(over="ignore"):
        return value, None if np.isfinite(np.float32(value)) else ParseProblem.NOT_A_NUMBER


def _hour(token: bytes) -> tuple[int, int] | None:
    if not re.fullmatch(rb"\d{8}", token):
        return None
    year, month, day, hour = (int(token[at : at + 2]) for at in range(0, 8, 2))
    try:
        moment = datetime.datetime(2000 + year, month, day, hour)
    except ValueError:
        return None
    return moment.hour, moment.weekday()


def _entry(token: bytes, position: int, with_fields: bool, row: list[tuple[int, int]]) -> ParseProblem | None:
    field = position
    if with_fields:
        head, separator, token = token.partition(b":")
        if not separator or not re.fullmatch(rb"\d+|-0+", head) or int(head) >= 1 << 31:
            return ParseProblem.NOT_AN_ENTRY
        field = int(head)
    index, separator, value = token.partition(b":")
    number = number_twin(value)
    if not index or not separator or number is None:
        return ParseProblem.NOT_AN_ENTRY
    if number != 1:
        return ParseProblem.NOT_ONE
    row.append((field, token_key_twin(index)))
    return None
