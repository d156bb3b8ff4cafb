"""Which rows come when: epochs, ranks, resuming, threads."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_datasets import numbered_dataset

from megalith.core.errors import CheckpointError, ConfigError, DataError
from megalith.data.batch import Batch
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader

shapes = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(0, 30), min_size=1, max_size=3),
        "group_rows": st.integers(1, 12),
        "bags": st.booleans(),
    }
)
options = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 9),
        "shuffle_window_rows": st.integers(1, 40),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 3),
        "threads": st.integers(1, 3),
        "prefetch": st.integers(1, 4),
    }
)


@contextmanager
def numbered(sizes: list[int], **shape: Any) -> Iterator[Dataset]:
    with tempfile.TemporaryDirectory() as folder:
        yield numbered_dataset(Path(folder), sizes, **shape)


def numbers(batch: Batch) -> list[int]:
    return [int(number) for number in batch.dense[:, 0]]


def all_numbers(loader: Loader) -> list[int]:
    return [number for batch in loader for number in numbers(batch)]


def same(one: Batch, other: Batch) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("dense", "values", "offsets", "labels")
    )


def no_loader_threads() -> bool:
    return not any(thread.name.startswith("megalith-loader") for thread in threading.enumerate())


@given(shape=shapes, option=options, world_size=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_ranks_read_every_row_once_in_the_same_number_of_steps(
    shape: dict[str, Any], option: dict[str, Any], world_size: int
) -> None:
    with numbered(**shape) as dataset:
        ranks = [
            Loader(dataset, ["train"], rank=rank, world_size=world_size, drop_last=False, **option)
            for rank in range(world_size)
        ]
        batches = [list(loader) for loader in ranks]
        seen = [number for rank in batches for batch in rank for number in numbers(batch)]
        assert sorted(seen) == list(range(sum(shape["sizes"])))
        assert {len(rank) for rank in batches} == {len(ranks[0])}
        # Only the last step may be short, and ranks differ there by one row at most.
        assert all(batch.batch_size == option["batch_size"] for rank in batches for batch in rank[:-1])
        last = {rank[-1].batch_size for rank in batches if rank}
        assert not last or max(last) - min(last) <= 1


@given(shape=shapes, option=options, world_size=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_dropping_the_last_batch_leaves_only_full_ones(
    shape: dict[str, Any], option: dict[str, Any], world_size: int
) -> None:
    rows, step = sum(shape["sizes"]), option["batch_size"] * world_size
    with numbered(**shape) as dataset:
        if rows // world_size < option["batch_size"]:
            with pytest.raises(DataError, match="do not fill one batch"):
                Loader(dataset, ["train"], world_size=world_size, **option)
            return
        seen: list[int] = []
        for rank in range(world_size):
            loader = Loader(dataset, ["train"], rank=rank, world_size=world_size, **option)
            batches = list(loader)
            assert len(batches) == len(loader)
            assert all(batch.batch_size == option["batch_size"] for batch in batches)
            seen += [number for batch in batches for number in numbers(batch)]
        assert len(seen) == len(set(seen)) > rows - step


@given(
    shape=shapes,
    option=options,
    drop_last=st.booleans(),
    rank_of_ranks=st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3)]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_resuming_anywhere_gives_the_rest_of_the_stream(
    shape: dict[str, Any],
    option: dict[str, Any],
    drop_last: bool,
    rank_of_ranks: tuple[int, int],
    data: st.DataObject,
) -> None:
    rank, world_size = rank_of_ranks
    option = {**option, "rank": rank, "world_size": world_size, "drop_last": drop_last, "epochs": 2}
    with numbered(**shape) as dataset:
        if drop_last and sum(shape["sizes"]) // world_size < option["batch_size"]:
            return
        first = Loader(dataset, ["train"], **option)
        states, batches = [first.state_dict()], []
        for batch in first.stream():
            batches.append(batch)
            states.append(first.state_dict())
        assert len(batches) == 2 * len(first)
        position = data.draw(st.integers(0, len(batches)))
        threads = data.draw(st.integers(1, 3))
        second = Loader(dataset, ["train"], **{**option, "threads": threads, "prefetch": threads})
        second.load_state_dict(states[position])
        assert second.state_dict() == states[position]
        rest = list(second.stream())
        assert len(rest) == len(batches) - position
        assert all(same(one, other) for one, other in zip(rest, batches[position:], strict=True))


def test_resuming_works_at_every_batch(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [37, 11], group_rows=5)
    whole = [numbers(batch) for batch in Loader(dataset, ["train"], 4, shuffle_window_rows=12)]
    for position in range(len(whole)):
        loader = Loader(dataset, ["train"], 4, shuffle_window_rows=12)
        for _ in zip(range(position), loader, strict=False):
            pass
        resumed = Loader(dataset, ["train"], 4, shuffle_window_rows=12)
        resumed.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": position})
        assert [numbers(batch) for batch in resumed] == whole[position:]


def test_resuming_does_not_decode_what_came_before(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [20, 20], group_rows=5)
    loader = Loader(dataset, ["train"], 5, shuffle=False, shuffle_window_rows=5)
    state = {**loader.state_dict(), "batch": 4}
    # With the first file's data gone, only a loader that skips it can go on.
    (tmp_path / "train/part-00000.parquet").write_bytes(b"")
    loader.load_state_dict(state)
    assert all_numbers(loader) == list(range(20, 40))


def test_a_state_is_refused_by_a_loader_of_another_order_except_between_epochs(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [40])
    loader = Loader(dataset, ["train"], 4)
    start = loader.state_dict()
    next(iter(loader))
    other = Loader(dataset, ["train"], 5)
    with pytest.raises(CheckpointError, match="batch_size=4 and now has batch_size=5"):
        other.load_state_dict(loader.state_dict())
    other.load_state_dict({**start, "epoch": 3})
    assert other.epoch == 3
    with pytest.raises(CheckpointError, match="version None"):
        other.load_state_dict({})


@given(shape=shapes, option=options)
@settings(max_examples=30, deadline=None)
def test_threads_and_prefetch_do_not_change_the_order(shape: dict[str, Any], option: dict[str, Any]) -> None:
    with numbered(**shape) as dataset:
        many = Loader(dataset, ["train"], drop_last=False, **option)
        one = Loader(dataset, ["train"], drop_last=False, **{**option, "threads": 1, "prefetch": 1})
        assert all_numbers(many) == all_numbers(one)


def test_epochs_differ_and_the_same_seed_repeats_them(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [60])
    loader = Loader(dataset, ["train"], 10, seed=1)
    epochs = [all_numbers(loader) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    again = Loader(dataset, ["train"], 10, seed=1)
    again.set_epoch(2)
    assert all_numbers(again) == epochs[2]
    assert all_numbers(Loader(dataset, ["train"], 10, seed=2)) != epochs[0]


def test_row_groups_come_in_another_order_each_epoch(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [200], group_rows=10)
    loader = Loader(dataset, ["train"], 10, shuffle_window_rows=10)
    orders = [[numbers(batch)[0] // 10 for batch in loader] for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1]


def test_rows_mix_across_row_groups_of_a_window(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [100], group_rows=10)
    first = numbers(next(iter(Loader(dataset, ["train"], 20, shuffle_window_rows=50))))
    assert len({number // 10 for number in first}) > 2


def test_without_shuffle_rows_keep_the_order_of_the_files(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [23, 4, 30], group_rows=7)
    loader = Loader(dataset, ["train"], 8, shuffle=False, drop_last=False, shuffle_window_rows=15)
    assert all_numbers(loader) == list(range(57))


def test_a_loader_ends_after_its_epochs(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [20])
    loader = Loader(dataset, ["train"], 5, epochs=2)
    assert [len(list(loader)) for _ in range(3)] == [4, 4, 0]
    assert len(list(Loader(dataset, ["train"], 5, epochs=2).stream())) == 8
    endless = Loader(dataset, ["train"], 5)
    assert len([batch for _, batch in zip(range(21), endless.stream(), strict=False)]) == 21


def test_a_second_iteration_goes_on_within_the_epoch(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [40])
    whole = all_numbers(Loader(dataset, ["train"], 5))
    loader = Loader(dataset, ["train"], 5)
    start = []
    for batch in loader:
        start += numbers(batch)
        if len(start) == 15:
            break
    assert start + all_numbers(loader) == whole


def test_no_thread_outlives_a_break_an_end_or_a_close(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [200])
    loader = Loader(dataset, ["train"], 5, shuffle_window_rows=10)
    for _ in loader:
        break
    assert no_loader_threads()
    list(loader)
    assert no_loader_threads()
    held = iter(loader)
    next(held)
    assert not no_loader_threads()
    loader.close()
    assert no_loader_threads()
    assert next(held, None) is None


def test_an_error_of_the_reader_ends_the_threads(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [200])

    def fail() -> None:
        for _ in Loader(dataset, ["train"], 5, shuffle_window_rows=10):
            raise KeyError("of the training step")

    with pytest.raises(KeyError):
        fail()
    assert no_loader_threads()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"threads": 0}, "threads=0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"seed": -1}, "seed=-1"),
        ({"epochs": -1}, "epochs=-1"),
        ({"splits": "train"}, "splits must be a list"),
        ({"splits": ["trian"]}, "did you mean 'train'"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, option: dict[str, Any], problem: str) -> None:
    dataset = numbered_dataset(tmp_path, [20])
    with pytest.raises(ConfigError, match=problem):
        Loader(dataset, **{"splits": ["train"], "batch_size": 2, **option})


def test_a_data_set_alone_is_read_as_its_training_split(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [5000])
    assert all_numbers(Loader(dataset)) == all_numbers(Loader(dataset, ["train"], 2048))
