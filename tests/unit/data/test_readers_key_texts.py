"""Texts of hashed keys, found again in what the parsers read."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megalith.data.readers.key_texts import HashedValues, line_texts
from megalith.ops.text.keys import HASHED_KEY, Keys
from megalith.ops.text.keys_twin import token_key_twin
from megalith.ops.text.rows import Role, parse_delimited, parse_entries, plan_columns

_tokens = st.text(alphabet="ab\u00e9\U0001f991 \0\r", max_size=12)
_ends = st.sampled_from(["\n", "\r\n", "\n\n", ""])


def assert_found(text: bytes, separators: bytes, keys: Keys) -> None:
    wanted = np.unique(keys[keys >= HASHED_KEY])
    if len(wanted):
        places = np.zeros(len(wanted), np.int64)
        found = line_texts(text, separators)(HashedValues(0, wanted, places)).to_pylist()
        assert [token_key_twin(token) for token in found] == wanted.tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(_tokens, _tokens, _ends), max_size=8))
@example([("a\0", "b\0", "\r\n"), ("", "\u00e9" * 4, "\r\n"), ("\r", "\u00e9" * 4 + "\r", "\r")])
@example([("", "", "\n"), ("a" * 9, "\0", "")])
@example([("", "b" * 8, "\r\n"), ("a" * 8, "b" * 8, "\r\r\n")])
def test_every_long_field_of_delimited_text_is_found(rows: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{left}\t{right}{end}" for left, right, end in rows).encode()
    parsed = parse_delimited(text, "\t", plan_columns([Role.CATEGORY, Role.CATEGORY]))
    assert_found(text, b"\t", parsed.keys.ravel())


@settings(deadline=None)
@given(st.lists(st.tuples(_tokens, _tokens, _ends), max_size=8), st.booleans())
def test_every_long_index_of_entries_is_found(rows: list[tuple[str, str, str]], with_fields: bool) -> None:
    field = "3:" if with_fields else ""
    text = "".join(f"1 {field}{left}:1\t{field}{right}:1{end}" for left, right, end in rows).encode()
    assert_found(text, b": \t", parse_entries(text, with_fields).keys)
