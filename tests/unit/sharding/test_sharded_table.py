"""`ShardedTable` in checkpoints: any cut is saved, any other cut reads it back."""

import itertools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.checkpoint.store import CheckpointStore
from megalith.sharding.runtime.sharded_table import ShardedTable, TableShard

ROWS, DIM = 7, 5


@st.composite
def cuts(draw):
    """Rectangles that are a [ROWS, DIM] table: cut by rows, then each part by columns of its own."""
    rows = sorted({0, ROWS, *draw(st.lists(st.integers(1, ROWS - 1), max_size=3))})
    rectangles = []
    for start, stop in itertools.pairwise(rows):
        columns = sorted({0, DIM, *draw(st.lists(st.integers(1, DIM - 1), max_size=2))})
        rectangles += [(start, stop, a, b) for a, b in itertools.pairwise(columns)]
    return draw(st.permutations(rectangles))


def table(whole, rectangles):
    shards = [TableShard(whole[a:b, c:d].clone(), (a, c)) for a, b, c, d in rectangles]
    return ShardedTable(whole.shape, whole.dtype, shards)


def whole_of(sharded):
    whole = torch.full(sharded.shape, -1.0)
    for tensor, (row, column), _ in sharded.shards:
        whole[row : row + tensor.shape[0], column : column + tensor.shape[1]] = tensor
    return whole


@given(saved=cuts(), loaded=cuts())
@settings(max_examples=20, deadline=None)
def test_a_table_saved_under_one_cut_loads_under_any_other_and_as_a_whole(saved, loaded):
    truth = torch.arange(float(ROWS * DIM)).view(ROWS, DIM)
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder))
        store.save(1, {"a": {"t": table(truth, saved)}}, {})
        state = {"a": {"t": table(torch.zeros(ROWS, DIM), loaded)}}
        store.load(1, state)
        assert torch.equal(whole_of(state["a"]["t"]), truth)
        state = {"a": {"t": torch.zeros(ROWS, DIM)}}
        store.load(1, state)
        assert torch.equal(state["a"]["t"], truth)
        store.save(2, state, {})
        state = {"a": {"t": table(torch.zeros(ROWS, DIM), loaded)}}
        store.load(2, state)
        assert torch.equal(whole_of(state["a"]["t"]), truth)


def test_a_snapshot_holds_what_is_written_and_no_longer_changes():
    kept, copy = torch.ones(4), torch.ones(4)
    sharded = ShardedTable((4,), torch.float32, [TableShard(kept, (0,)), TableShard(copy, (0,), False)])
    taken = sharded.snapshot()
    kept.zero_()
    assert [shard.tensor.tolist() for shard in taken.shards] == [[1.0] * 4]
    assert sharded.held_bytes == 32


@pytest.mark.parametrize("offsets", [(3, 0), (0, -1), (0,)])
def test_a_rectangle_outside_of_the_table_is_refused(offsets):
    with pytest.raises(ValueError, match="shard"):
        ShardedTable((4, 2), torch.float32, [TableShard(torch.zeros(2, 2), offsets)])


def test_arithmetic_is_refused():
    with pytest.raises(NotImplementedError, match="use the tensors of its shards"):
        ShardedTable((4, 2), torch.float32, []) + 1
