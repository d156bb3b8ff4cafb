"""Vocabulary files: the text of keys, and tables that do not fit the budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.data.prepare.id_sources import IdSource
from megalith.data.prepare.vocabulary import counted_ids, key_texts, loaded_ids
from megalith.ops.text.keys import KeyCounter
from megalith.ops.text.keys_twin import token_key_twin


def keys_of(tokens: list[bytes]) -> np.ndarray:
    return np.array([token_key_twin(token) for token in tokens], np.uint64)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(min_codepoint=1), min_size=1, max_size=8), max_size=20))
def test_a_short_value_is_read_back_from_its_key(texts: list[str]) -> None:
    tokens = [text.encode("utf-8", "surrogatepass") for text in texts]
    found = key_texts(keys_of(tokens)).to_pylist()
    for text, token, read in zip(texts, tokens, found, strict=True):
        assert read in (text, None)
        assert read == text or len(token) > 8 or not text.isascii()


def test_values_that_are_hashed_or_not_text_have_none() -> None:
    tokens = [b"abc", "n\u00e9".encode(), b"www.example.org"]
    assert key_texts(keys_of(tokens)).to_pylist() == ["abc", "n\u00e9", None]
    assert key_texts(keys_of([*tokens, b"\xff\x01"])).to_pylist() == ["abc", None, None, None]


def test_tables_beyond_the_budget_give_the_same_ids(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).integers(1, 5000, 40_000).astype(np.uint64)
    sources = [
        IdSource(name, (place,), is_raw=False, hash_buckets=None, min_count=2, max_vocabulary=None)
        for place, name in enumerate(("large", "small/odd name"))
    ]
    results = []
    for name, memory_bytes in (("roomy", 1 << 30), ("tight", 1)):
        folder, work_folder = tmp_path / name, tmp_path / f"{name}-work"
        folder.mkdir()
        counter = KeyCounter(2, memory_bytes, work_folder)
        counter.add(0, keys)
        counter.add(1, keys % np.uint64(7))
        ids = counted_ids(counter, sources, folder, work_folder, memory_bytes, 2)
        assert not list(work_folder.iterdir())
        results.append([feature.to_ids(keys).tolist() for feature in ids])
        assert ids[1].num_ids == 2 + 6
        (tmp_path / f"{name}-copy").mkdir()
        names = [source.name for source in sources]
        again = loaded_ids(folder, names, tmp_path / f"{name}-copy", work_folder, memory_bytes)
        assert [feature.num_ids for feature in again] == [feature.num_ids for feature in ids]
        results.append([feature.to_ids(keys).tolist() for feature in again])
    assert results[0] == results[1] == results[2] == results[3]
