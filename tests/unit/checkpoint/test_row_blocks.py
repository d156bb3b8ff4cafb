"""Rows of tables in checkpoints, by global id: any cut is saved, any other cut reads it back."""

import itertools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError
from megalith.embeddings.row_block import PartSpec, RowBlock
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.stores.row_files import Holds
from megalith.embeddings.table_state import TableState

ROWS, DIM = 14, 5
PARTS = {
    "weight": PartSpec(torch.bfloat16, "element"),
    "first": PartSpec(torch.float32, "element"),
    "second": PartSpec(torch.float32, "row"),
}
WHOLE = ((0, ROWS, 0, DIM),)


def truth():
    numbers = torch.arange(float(ROWS * DIM)).view(ROWS, DIM)
    return {"weight": numbers.bfloat16(), "first": numbers / 7, "second": torch.arange(float(ROWS)) / 3}


def cut(parts, rectangles):
    """A table that lies here in these rectangles."""
    shards = [
        DenseShard(a, c, {n: (p[a:b, c:d] if p.dim() == 2 else p[a:b]).clone() for n, p in parts.items()})
        for a, b, c, d in rectangles
    ]
    return TableState(ROWS, DIM, PARTS, tuple(shards))


def blank(rectangles):
    return cut({name: torch.full_like(part, -1) for name, part in truth().items()}, rectangles)


def holds_the_truth(state):
    expected = cut(truth(), [(*shard.rows, *shard.columns) for shard in state.shards])
    return all(
        torch.equal(part, other.parts[name])
        for shard, other in zip(state.shards, expected.shards, strict=True)
        for name, part in shard.parts.items()
    )


@st.composite
def cuts(draw):
    """Rectangles that are the whole table: cut by rows, then each part by columns of its own."""
    rows = sorted({0, ROWS, *draw(st.lists(st.integers(1, ROWS - 1), max_size=3))})
    rectangles = []
    for start, stop in itertools.pairwise(rows):
        columns = sorted({0, DIM, *draw(st.lists(st.integers(1, DIM - 1), max_size=2))})
        rectangles += [(start, stop, a, b) for a, b in itertools.pairwise(columns)]
    return draw(st.permutations(rectangles))


@given(saved=cuts(), loaded=cuts(), file_bytes=st.sampled_from([1, 40, 130, 1 << 20]))
@settings(max_examples=30)
def test_a_table_saved_under_one_cut_loads_under_any_other(saved, loaded, file_bytes):
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), file_bytes=file_bytes)
        store.save(1, {"a": {"t": cut(truth(), saved)}}, {})
        for rectangles in (loaded, WHOLE, loaded[:1], []):
            state = blank(rectangles)
            store.load(1, {"a": {"t": state}})
            assert holds_the_truth(state)


def test_the_files_are_safetensors_that_anybody_can_read(tmp_path):
    store = CheckpointStore(tmp_path, file_bytes=12 * 5)
    store.save(1, {"t": cut(truth(), [(0, 9, 0, DIM), (9, ROWS, 0, DIM)])}, {})
    manifest = read_manifest(store.path(1))
    rows = {name: torch.zeros_like(part) for name, part in truth().items()}
    for block in manifest.tables["t"].blocks:
        tensors = load_file(store.path(1) / block.file)
        for name, part in rows.items():
            part[block.first : block.first + block.count] = tensors[f"{block.name}/{name}"]
    assert all(torch.equal(part, rows[name]) for name, part in truth().items())
    assert len(manifest.tables["t"].blocks) > 2


@given(ids=st.sets(st.integers(0, ROWS - 1)), loaded=cuts())
def test_a_block_may_name_single_ids(ids, loaded):
    """As tables write that hold only some rows."""
    chosen = torch.tensor(sorted(ids), dtype=torch.int64)
    state = blank(loaded)
    if ids:
        block = RowBlock(chosen, (0, DIM), {name: part[chosen] for name, part in truth().items()})
        state.load(block)
    for shard in state.shards:
        (first, last), (left, right) = shard.rows, shard.columns
        for name, part in shard.parts.items():
            whole = truth()[name]
            expected = torch.full_like(whole, -1)
            expected[chosen] = whole[chosen]
            expected = expected[first:last, left:right] if whole.dim() == 2 else expected[first:last]
            assert torch.equal(part, expected)


class _SomeIds(DenseShard):
    """Writes its rows in two blocks that name their ids."""

    def blocks(self, max_bytes):
        del max_bytes
        for first in (0, 1):
            ids = torch.arange(first, ROWS, 2)
            yield RowBlock(ids, (0, DIM), {n: p[ids] for n, p in self.parts.items()})


def test_blocks_of_single_ids_are_stored_with_them(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"t": TableState(ROWS, DIM, PARTS, (_SomeIds(0, 0, truth()),))}, {})
    state = blank([(0, 5, 0, 2), (0, 5, 2, DIM), (5, ROWS, 0, DIM)])
    store.load(1, {"t": state})
    assert holds_the_truth(state)


def test_a_snapshot_holds_what_is_written_and_no_longer_changes():
    state = cut(truth(), WHOLE)
    copy = DenseShard(0, 0, state.shards[0].parts, writes=False)
    taken = TableState(ROWS, DIM, PARTS, (*state.shards, copy)).snapshot(Holds())
    for part in state.shards[0].parts.values():
        part.zero_()
    assert len(taken.shards) == 1
    assert holds_the_truth(taken)


def test_missing_rows_are_noticed(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"t": cut(truth(), [(0, 9, 0, DIM), (10, ROWS, 0, DIM)])}, {})
    with pytest.raises(CheckpointError, match="lacks rows of table 't'"):
        store.load(1, {"t": blank(WHOLE)})


@pytest.mark.parametrize("corner", [(ROWS - 1, 0), (0, -1), (0, DIM - 1)])
def test_a_rectangle_outside_of_the_table_is_refused(corner):
    parts = {"weight": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match="shard"):
        TableState(ROWS, DIM, {"weight": PartSpec(torch.float32, "element")}, (DenseShard(*corner, parts),))
