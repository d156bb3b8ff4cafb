"""`parse_entries`: libFM and libFFM lines, native against the plain twin."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalith.ops.text import rows as text_rows
from megalith.ops.text import rows_twin

_entries = st.one_of(
    st.tuples(st.integers(0, 99), st.integers(0, 10**12)).map(lambda pair: f"{pair[0]}:{pair[1]}:1"),
    st.integers(0, 10**12).map(lambda index: f"{index}:1"),
    st.sampled_from(
        ["7:1.0", "7:0", "7:0.5", "7", ":1", "7:", "a:b:1", "-1:2:1", "-0:2:1", "1:+2:1", "7:nan", "::"]
    ),
    st.integers(2**31 - 2, 2**31 + 2).map(lambda field: f"{field}:1:1"),
)
_rows = st.tuples(
    st.sampled_from(["-1", "1", "0", "+1", "2", "x"]),
    st.lists(_entries, max_size=5),
    st.sampled_from([" ", "\t", "  "]),
    st.sampled_from(["\n", "\r\n", " \n", "\n\n"]),
).map(lambda row: row[2].join([row[0], *row[1]]) + row[3])
_texts = st.one_of(
    st.lists(_rows, max_size=8).map("".join).map(str.encode),
    st.text(alphabet="01: \t\r\n-", max_size=200).map(str.encode),
)


@settings(max_examples=300, deadline=None)
@given(_texts, st.booleans(), st.booleans(), st.none() | st.integers(0, 2))
@example(b"1 1:1 \r", False, False, None)
@example(b"", True, True, None)
def test_native_rows_equal_the_twin(
    content: bytes, with_fields: bool, cut: bool, row_entries: int | None
) -> None:
    content = content.rstrip(b"\r\n") if cut else content
    found = text_rows.parse_entries(content, with_fields, row_entries)
    wanted = rows_twin.parse_entries_twin(content, with_fields, row_entries)
    assert found.lines == wanted.lines
    for name in ("labels", "row_ends", "fields", "keys", "problems"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


def test_fields_are_positions_or_what_the_text_says() -> None:
    assert text_rows.parse_entries(b"1 5:1 9:1\n-1 4:1\n").fields.tolist() == [0, 1, 0]
    assert text_rows.parse_entries(b"1 7:5:1 3:9:1\n", with_fields=True).fields.tolist() == [7, 3]
