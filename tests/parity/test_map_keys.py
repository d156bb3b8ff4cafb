"""`KeyLookup`: known keys get their ids, others 1, missing values 0; in memory and in a mapped file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.text.keys import KeyLookup
from megalith.ops.text.keys_twin import map_keys_twin

_keys = st.integers(1, 2**64 - 1) | st.integers(1, 50)


@settings(deadline=None)
@given(st.lists(_keys, unique=True, max_size=100), st.lists(_keys | st.just(0), max_size=100))
def test_ids_equal_the_twin(known: list[int], asked: list[int]) -> None:
    lookup = KeyLookup(len(known))
    lookup.insert(np.array(known, np.uint64), 2)
    vocabulary = {key: id_ for id_, key in enumerate(known, start=2)}
    asked += known
    np.testing.assert_array_equal(lookup.map(np.array(asked, np.uint64)), map_keys_twin(vocabulary, asked))


def test_a_mapped_table_gives_the_same_ids_and_leaves_no_file(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).permutation(np.arange(1, 50_001, dtype=np.uint64))
    plain, mapped = KeyLookup(len(keys)), KeyLookup(len(keys), tmp_path / "table")
    for lookup in (plain, mapped):
        lookup.insert(keys[:30_000], 2)
        lookup.insert(keys[30_000:], 30_002)
    np.testing.assert_array_equal(plain.map(keys), np.arange(2, 50_002))
    np.testing.assert_array_equal(mapped.map(keys), np.arange(2, 50_002))
    assert not list(tmp_path.iterdir())


def test_a_table_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KeyLookup(10, tmp_path / "absent" / "table")
