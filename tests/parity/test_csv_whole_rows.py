"""`csv_whole_rows`: native against the plain twin."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalith.ops.text.csv import csv_whole_rows
from megalith.ops.text.csv_twin import csv_whole_rows_twin


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet='a",\n\r', max_size=60).map(str.encode))
@example(b"")
@example(b'"')
@example(b'"\n')
@example(b'a"b\n"c\n""d"\n')
def test_native_ends_equal_the_twin(text: bytes) -> None:
    assert csv_whole_rows(text, ",") == csv_whole_rows_twin(text, ",")


def test_a_line_feed_inside_quotes_ends_no_row() -> None:
    text = b'a,b\n"two\nlines",d\ne,"f\nstill open'
    assert csv_whole_rows(text, ",") == (text.index(b'e,"f'), 3)
    assert csv_whole_rows(b"a,b", ",") == (0, 0)
    # A quote that does not begin a field is a character like others.
    assert csv_whole_rows(b'5" screen\nnext\n', ",") == (15, 2)
