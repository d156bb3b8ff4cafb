"""`RowSnapshot`: rows are read as they were, whatever training changes before the reader comes to them."""

import threading

import pytest
import torch

from megalith.embeddings.changes.row_snapshot import CopiedBytes, RowSnapshot
from megalith.embeddings.changes.touched_rows import TouchedRows
from megalith.embeddings.stores.dense_shard import DenseShard

ROWS, DIM, FIRST = 300, 4, 1000
ROW_BYTES = 4 * (DIM + 1)


def make_shard(touched=None, first_column=0):
    generator = torch.Generator().manual_seed(0)
    parts = {
        "weight": torch.randn(ROWS, DIM, generator=generator),
        "first": torch.rand(ROWS, generator=generator),
    }
    return DenseShard(FIRST, first_column, parts, touched=touched)


def train(shard, snapshot, step):
    """Changes rows as a step does: told before, some of them several times."""
    generator = torch.Generator().manual_seed(step)
    rows = (torch.rand(60, generator=generator) ** 2 * ROWS).long()
    snapshot.before(rows)
    for part in shard.parts.values():
        part[rows] += 1


def assert_is(blocks, expected, ids):
    """The blocks hold these rows, once each, rising, as they were."""
    assert torch.cat([torch.as_tensor(block.ids) for block in blocks]).tolist() == (ids + FIRST).tolist()
    for name, part in expected.items():
        assert torch.equal(torch.cat([block.parts[name] for block in blocks]), part[ids])


@pytest.mark.parametrize("chosen", [None, torch.arange(1, ROWS, 3), torch.tensor([], dtype=torch.int64)])
@pytest.mark.parametrize("locked", [ROW_BYTES, 7 * ROW_BYTES, 1 << 20])
def test_rows_are_as_they_were_though_steps_change_them_between_blocks(chosen, locked, monkeypatch):
    monkeypatch.setattr("megalith.embeddings.changes.row_snapshot._LOCKED_BYTES", locked)
    shard, copies = make_shard(), CopiedBytes(1 << 20)
    expected = {name: part.clone() for name, part in shard.parts.items()}
    snapshot = RowSnapshot(shard, chosen, copies)
    train(shard, snapshot, 0)
    blocks = []
    for step, block in enumerate(snapshot.blocks(40 * ROW_BYTES)):
        blocks.append(block)
        train(shard, snapshot, step + 1)
    ids = torch.arange(ROWS) if chosen is None else chosen
    if len(ids):
        assert_is(blocks, expected, ids)
        assert copies.peak_bytes > 0
    else:
        assert blocks == []
    assert not torch.equal(shard.parts["weight"], expected["weight"])
    before = copies.peak_bytes
    train(shard, snapshot, 99)
    assert copies.peak_bytes == before


def test_a_row_is_copied_once_however_often_it_changes():
    shard, copies = make_shard(), CopiedBytes(1 << 20)
    snapshot = RowSnapshot(shard, None, copies)
    rows = torch.tensor([5, 5, 7, 5], dtype=torch.int32)
    for _ in range(3):
        snapshot.before(rows)
    assert copies.peak_bytes == 2 * (ROW_BYTES + 8)


def test_numbers_a_row_travel_with_the_first_columns_only():
    (block,) = RowSnapshot(make_shard(first_column=8), None, CopiedBytes(1)).blocks(1 << 20)
    assert set(block.parts) == {"weight"}


def test_training_waits_while_copies_take_more_than_the_bound():
    shard = make_shard()
    expected = {name: part.clone() for name, part in shard.parts.items()}
    copies = CopiedBytes(10 * (ROW_BYTES + 8))
    snapshot = RowSnapshot(shard, None, copies)
    went_on = threading.Event()

    def step():
        snapshot.before(torch.arange(20))
        went_on.set()
        shard.parts["weight"].zero_()

    trainer = threading.Thread(target=step)
    trainer.start()
    blocks = snapshot.blocks(100 * ROW_BYTES)
    first = next(blocks)
    assert not went_on.wait(0.05)
    rest = list(blocks)
    trainer.join(30)
    assert went_on.is_set()
    assert_is([first, *rest], expected, torch.arange(ROWS))


def test_whatever_is_loaded_waits_for_the_reader():
    touched = TouchedRows(ROWS)
    shard = make_shard(touched)
    expected = {name: part.clone() for name, part in shard.parts.items()}
    snapshot = RowSnapshot(shard, None, CopiedBytes(1 << 20))
    touched.hold(snapshot)
    cleared = threading.Thread(target=shard.clear)
    cleared.start()
    blocks = list(snapshot.blocks(100 * ROW_BYTES))
    cleared.join(30)
    assert_is(blocks, expected, torch.arange(ROWS))
    assert not shard.parts["weight"].any()
    touched.release(snapshot)
    assert not touched.is_held


def test_nobody_waits_for_a_reader_that_is_gone():
    shard, copies = make_shard(), CopiedBytes(1)
    snapshot = RowSnapshot(shard, None, copies)
    snapshot.close()
    snapshot.before(torch.arange(20))
    snapshot.wait()
    assert copies.peak_bytes == 0
