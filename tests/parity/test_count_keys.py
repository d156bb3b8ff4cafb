"""`KeyCounter`: counts within a budget equal a plain Counter, with and without spills, from any threads."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.text.keys import KeyCounter
from megalith.ops.text.keys_twin import count_keys_twin

_SMALL, _LARGE = 100_000, 100_000_000


def finish(counter: KeyCounter, feature: int, folder: Path, **limits: int) -> list[tuple[int, int]]:
    path = folder / f"entries-{feature}"
    count = counter.finish(feature, path, **limits)
    entries = np.fromfile(path, np.uint64).reshape(-1, 2)
    assert len(entries) == count
    return [(key, times) for key, times in entries.tolist()]


@settings(max_examples=40, deadline=None)
@given(
    keys=st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1), max_size=200),
    min_count=st.integers(1, 3),
    max_size=st.none() | st.integers(1, 10),
)
def test_counts_equal_the_twin(keys: list[int], min_count: int, max_size: int | None) -> None:
    with tempfile.TemporaryDirectory() as name, KeyCounter(1, _LARGE, Path(name)) as counter:
        counter.add(0, np.array(keys, np.uint64))
        path = Path(name) / "entries"
        counter.finish(0, path, min_count, max_size)
        found = [tuple(entry) for entry in np.fromfile(path, np.uint64).reshape(-1, 2).tolist()]
    assert found == count_keys_twin(keys, min_count, max_size)


@pytest.mark.parametrize("limits", [{}, {"min_count": 4}, {"max_size": 1000}])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_spilled_counts_equal_the_twin(tmp_path: Path, limits: dict[str, int], num_threads: int) -> None:
    random = np.random.default_rng(0)
    columns = [random.integers(0, high, 60_000).astype(np.uint64) for high in (3, 20_000, 50_000)]
    with (
        KeyCounter(len(columns), _SMALL, tmp_path / "spill") as counter,
        ThreadPoolExecutor(num_threads) as pool,
    ):
        pieces = [
            (feature, keys[at : at + 5000])
            for at in range(0, 60_000, 5000)
            for feature, keys in enumerate(columns)
        ]
        list(pool.map(lambda piece: counter.add(*piece), pieces))
        assert counter.num_spills > 10
        for feature, keys in enumerate(columns):
            assert finish(counter, feature, tmp_path, **limits) == count_keys_twin(keys.tolist(), **limits)
    assert not list((tmp_path / "spill").iterdir())


def test_only_chosen_keys_count(tmp_path: Path) -> None:
    keys = np.array([5, 6, 5, 7], np.uint64)
    with KeyCounter(1, _LARGE, tmp_path) as counter:
        counter.add(0, keys, np.array([True, False, True, True]))
        assert finish(counter, 0, tmp_path) == [(5, 2), (7, 1)]


def test_a_spill_folder_that_refuses_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    with KeyCounter(1, 1, folder) as counter:
        folder.rmdir()
        with pytest.raises(FileNotFoundError):
            counter.add(0, np.arange(1, 100_000, dtype=np.uint64))
