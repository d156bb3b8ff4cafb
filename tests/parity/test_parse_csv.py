"""`parse_csv`: native against the plain twin, and against Python's own writer."""

from __future__ import annotations

import csv
import io
import itertools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalith.ops.text import csv as native_csv
from megalith.ops.text import csv_twin
from megalith.ops.text.rows import ParseProblem

_fields = st.text(alphabet='ab",;\n\r x', max_size=6)
_tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(_fields, min_size=width, max_size=width), max_size=8)
)
_mangled = st.text(alphabet='a",\n\r', max_size=60).map(str.encode)


def columns_of(rows: native_csv.CsvRows) -> list[list[bytes]]:
    text = rows.data.tobytes()
    return [
        [text[begin:end] for begin, end in itertools.pairwise(bounds)] for bounds in rows.offsets.tolist()
    ]


@settings(max_examples=400, deadline=None)
@given(_mangled, st.lists(st.booleans(), max_size=4))
@example(b'"', [True])
@example(b'""\n"a""b"c,\r\n', [True, True])
@example(b'a,"b\r\n', [True, True])
@example(b"", [])
def test_native_rows_equal_the_twin(text: bytes, wanted: list[bool]) -> None:
    numbers = iter(range(len(wanted)))
    outputs = [next(numbers) if chosen else -1 for chosen in wanted]
    found = native_csv.parse_csv(text, ",", outputs)
    expected = csv_twin.parse_csv_twin(text, ",", outputs)
    assert found.lines == expected.lines
    assert columns_of(found) == columns_of(expected)
    np.testing.assert_array_equal(found.row_lines, expected.row_lines)
    np.testing.assert_array_equal(found.problems, expected.problems)


@settings(max_examples=200, deadline=None)
@given(_tables, st.sampled_from([",", ";"]), st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read(table: list[list[str]], delimiter: str, end: str) -> None:
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(table)
    text = written.getvalue().encode()
    width = len(table[0]) if table else 1
    rows = native_csv.parse_csv(text, delimiter, range(width))
    assert columns_of(rows) == [[row[column].encode() for row in table] for column in range(width)]
    assert not len(rows.problems)


def test_rows_that_cannot_be_read_are_named_by_the_line_where_they_begin() -> None:
    text = b'a,b\n"two\nlines",d\n\nshort\ne,"f\nnever closed\n'
    rows = native_csv.parse_csv(text, ",", [0, 1])
    assert columns_of(rows) == [[b"a", b"two\nlines"], [b"b", b"d"]]
    assert rows.row_lines.tolist() == [0, 1]
    kinds = [(line, before, kind) for line, before, kind, *_ in rows.problems.tolist()]
    assert kinds == [(4, 2, ParseProblem.FIELD_COUNT), (5, 2, ParseProblem.OPEN_QUOTE)]
