"""Ranks that cut the batches of one process: the same rows in the same order, for any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parquet_datasets import numbered_dataset
from test_loader_order import numbered, numbers, options, same, shapes

from megalith.core.errors import CheckpointError, DataError
from megalith.data.batch import Batch
from megalith.data.loader import Loader
from megalith.data.loader.pieces import join


def joined(batches: tuple[Batch, ...], num_features: int) -> Batch:
    held = [batch for batch in batches if batch.batch_size]
    return join(held, num_features) if held else batches[0]


@given(shape=shapes, option=options, world_size=st.integers(1, 4), drop_last=st.booleans())
@settings(max_examples=60, deadline=None)
def test_slices_of_all_ranks_are_the_batches_of_one_process(
    shape: dict[str, Any], option: dict[str, Any], world_size: int, drop_last: bool
) -> None:
    option = {**option, "drop_last": drop_last, "epochs": 2}
    with numbered(**shape) as dataset:
        if drop_last and sum(shape["sizes"]) < option["batch_size"]:
            with pytest.raises(DataError, match="do not fill one batch"):
                Loader(dataset, ["train"], rank=0, world_size=world_size, share="slices", **option)
            return
        one = Loader(dataset, ["train"], **option)
        ranks = [
            Loader(dataset, ["train"], rank=rank, world_size=world_size, share="slices", **option)
            for rank in range(world_size)
        ]
        assert {len(loader) for loader in ranks} == {len(one)}
        whole = list(one.stream())
        slices = list(zip(*(loader.stream() for loader in ranks), strict=True))
        assert len(slices) == len(whole)
        for expected, parts in zip(whole, slices, strict=True):
            assert same(joined(parts, len(one.features)), expected)
            sizes = [part.batch_size for part in parts]
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@given(shape=shapes, option=options, world_size=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_dealt_out_batches_of_all_ranks_are_those_of_one_process(
    shape: dict[str, Any], option: dict[str, Any], world_size: int
) -> None:
    with numbered(**shape) as dataset:
        option = {**option, "drop_last": False}
        whole = [numbers(batch) for batch in Loader(dataset, ["train"], **option)]
        ranks = [
            Loader(dataset, ["train"], rank=rank, world_size=world_size, share="batches", **option)
            for rank in range(world_size)
        ]
        rounds = list(zip(*ranks, strict=True))
        dealt = [numbers(batch) for one in rounds for batch in one]
        assert len(dealt) == len(rounds) * world_size < len(whole) + world_size
        assert dealt == whole + [[]] * (len(dealt) - len(whole))


@given(
    shape=shapes,
    option=options,
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    position=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_a_state_taken_on_some_ranks_goes_on_with_any_other_number(
    shape: dict[str, Any], option: dict[str, Any], before: int, after: int, position: int
) -> None:
    option = {**option, "drop_last": False, "epochs": 2}
    with numbered(**shape) as dataset:
        whole = list(Loader(dataset, ["train"], **option).stream())
        position = min(position, len(whole))
        first = Loader(dataset, ["train"], rank=before - 1, world_size=before, share="slices", **option)
        for _ in zip(range(position), first.stream(), strict=False):
            pass
        state = first.state_dict()
        ranks = [
            Loader(dataset, ["train"], rank=rank, world_size=after, share="slices", **option)
            for rank in range(after)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        rest = list(zip(*(loader.stream() for loader in ranks), strict=True))
        assert len(rest) == len(whole) - position
        for expected, parts in zip(whole[position:], rest, strict=True):
            assert same(joined(parts, len(ranks[0].features)), expected)


def test_one_process_and_ranks_share_their_states_but_not_with_ranks_that_have_rows_of_their_own(
    tmp_path: Path,
) -> None:
    dataset = numbered_dataset(tmp_path, [40])
    rank = Loader(dataset, ["train"], 4, rank=1, world_size=2, share="slices")
    next(iter(rank))
    one = Loader(dataset, ["train"], 4)
    one.load_state_dict(rank.state_dict())
    assert one.state_dict() == rank.state_dict()
    own = Loader(dataset, ["train"], 4, rank=1, world_size=2)
    with pytest.raises(CheckpointError, match="world_size=1 and now has world_size=2"):
        own.load_state_dict(rank.state_dict())


def test_labels_and_bags_are_cut_with_their_rows(tmp_path: Path) -> None:
    dataset = numbered_dataset(tmp_path, [23], bags=True)
    whole = list(Loader(dataset, ["train"], 7, drop_last=False))
    parts = [
        list(Loader(dataset, ["train"], 7, drop_last=False, rank=rank, world_size=3, share="slices"))
        for rank in range(3)
    ]
    for step, expected in enumerate(whole):
        assert torch.equal(torch.cat([rank[step].labels for rank in parts]), expected.labels)
        assert sum(len(rank[step].values) for rank in parts) == len(expected.values)
