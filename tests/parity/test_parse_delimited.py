"""`parse_delimited`: the native tokeniser against the plain twin, on clean and on mangled text_rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalith.ops.text import rows as text_rows
from megalith.ops.text import rows_twin
from megalith.ops.text.rows import Role

_numbers = st.one_of(
    st.integers(-(10**18), 10**18).map(str),
    st.integers(-5, 5000).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["", "+3", "-", "1e5", "1e", ".5", "5.", ".", "nan", "inf", "0x1", "1_0", " 1", "1e999", "-0"]
    ),
)
_labels = st.sampled_from(["0", "1", "1.0", "-1", "", "2", "x"])
_hours = st.one_of(
    st.datetimes().map(lambda moment: moment.strftime("%y%m%d%H")),
    st.sampled_from(
        ["14102100", "", "14023000", "16022923", "15022900", "1410210x", "141021001", "00010100"]
    ),
)
_any_tokens = st.one_of(
    st.binary(max_size=12), st.sampled_from([b"68fd1e64", b"a73ee510", b"\xff" * 8, b"a\0"])
)
_roles = (
    Role.LABEL,
    Role.NUMBER,
    Role.NUMBER_LOG,
    Role.BUCKET,
    Role.CATEGORY,
    Role.HOUR,
    Role.SKIP,
    Role.CATEGORY,
)
_row = st.tuples(
    _labels.map(str.encode),
    _numbers.map(str.encode),
    _numbers.map(str.encode),
    _numbers.map(str.encode),
    _any_tokens,
    _hours.map(str.encode),
    _any_tokens,
    _any_tokens,
).map(b"\t".join)
_ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n"])
_texts = st.lists(st.tuples(_row, _ends), max_size=8).map(
    lambda rows: b"".join(row + end for row, end in rows)
)


def assert_same(found: text_rows.DelimitedRows, wanted: text_rows.DelimitedRows) -> None:
    assert found.lines == wanted.lines
    np.testing.assert_array_equal(found.problems, wanted.problems)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(
        found.numbers.view(np.uint32), np.ascontiguousarray(wanted.numbers).view(np.uint32)
    )
    np.testing.assert_array_equal(found.keys, wanted.keys)


@settings(max_examples=300, deadline=None)
@given(_texts, st.booleans())
def test_native_rows_equal_the_twin(content: bytes, cut: bool) -> None:
    plan = text_rows.plan_columns(_roles)
    content = content.rstrip(b"\r\n") if cut else content
    assert_same(
        text_rows.parse_delimited(content, "\t", plan, -1.5),
        rows_twin.parse_delimited_twin(content, "\t", plan, -1.5),
    )


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="01,\n\r-.e9ab", max_size=400).map(str.encode))
@example(b"")
@example(b"\n")
@example(b",")
@example(b"1,2,a\r")
def test_mangled_text_is_read_or_refused_alike(content: bytes) -> None:
    plan = text_rows.plan_columns((Role.LABEL, Role.NUMBER_LOG, Role.CATEGORY))
    assert_same(
        text_rows.parse_delimited(content, ",", plan), rows_twin.parse_delimited_twin(content, ",", plan)
    )


@pytest.mark.parametrize("padding", range(130))
def test_a_field_may_lie_anywhere_across_the_vector_blocks(padding: int) -> None:
    plan = text_rows.plan_columns((Role.CATEGORY, Role.CATEGORY, Role.NUMBER))
    content = b"x" * padding + b"\tabcdefgh\t12\r\n\tab\t-3"
    rows = text_rows.parse_delimited(content, "\t", plan)
    assert_same(rows, rows_twin.parse_delimited_twin(content, "\t", plan))
    assert rows.numbers.tolist() == [[12.0, -3.0]]


def test_a_problem_names_line_field_and_text() -> None:
    plan = text_rows.plan_columns((Role.LABEL, Role.NUMBER, Role.CATEGORY))
    content = b"1\t5\ta\n0\tfive\tb\n1\t2\n\n2\t1\tc\n0\t4\td\n"
    rows = text_rows.parse_delimited(content, "\t", plan)
    assert rows.labels.tolist() == [1.0, 0.0]
    assert rows.lines == 6
    assert rows.problems.tolist() == [
        [1, 1, text_rows.ParseProblem.NOT_A_NUMBER, 2, 8, 4],
        [2, 1, text_rows.ParseProblem.FIELD_COUNT, 2, 17, 0],
        [4, 1, text_rows.ParseProblem.NOT_A_LABEL, 1, 20, 1],
    ]
