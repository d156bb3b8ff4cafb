"""Pools of chunked rows against a dictionary: the same rows after any sequence of calls."""

import os
import subprocess
import sys

import pytest
import torch
from chunked_worlds import CAPACITY, PoolWorld, drawn_batch, drawn_ids, drawn_masks, pool_worlds, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, NativeError, OutOfMemoryError
from megalith.ops.chunks.blocks import ChunkedBlock, ChunkShape, compressed
from megalith.ops.chunks.chunked_rows import (
    FIRST_ABSENT,
    INDEX_FORMS,
    PADDING_SLOT,
    ChunkedBytes,
    ChunkedRows,
)
from megalith.ops.stores.start_values import StartValues, start_values_
from megalith.ops.stores.tiered_rows import PooledTable

CALLS = ("resolve", "resolve", "rewrite", "rewrite", "compact", "scale", "load")


def equal_blocks(one, other):
    return all(
        a.dtype == b.dtype and torch.equal(a.reshape(-1), b.reshape(-1))
        for a, b in zip(one, other, strict=True)
    )


def check_same_rows(world, pool, twin, rows=7):
    for table in range(len(world.rows)):
        found, expected = list(pool.blocks(table, rows)), list(twin.blocks(table, rows))
        assert len(found) == len(expected)
        assert all(equal_blocks(one, other) for one, other in zip(found, expected, strict=True))


def check_bytes(world, pool, twin):
    statistics, shape = pool.statistics(), world.shape
    live = [bin(row.mask & (2**64 - 1)).count("1") for row in twin.rows.values()]
    assert [sum(count == n for count in live) for n in range(shape.chunks + 1)] == list(statistics.records)
    assert statistics.bytes.weights == sum(live) * shape.width * shape.dtype.itemsize
    numbers = {"none": 0, "row": len(live), "full": sum(live) * shape.width}
    assert statistics.bytes.state == 4 * (numbers[shape.first_state] + numbers[shape.second_state])
    assert statistics.bytes.utility >= 2 * sum(live) + 4 * len(live)
    assert statistics.bytes.free >= 0
    assert list(statistics.rows) == [
        sum(key[0] == table for key in twin.rows) for table in range(len(world.rows))
    ]


def check_resolved(found, expected, twin, values, lookups):
    """The same padding, the same numbers of absent ids; one slot for each record."""
    assert torch.equal(found.absent, expected.absent)
    assert found.room == expected.room
    is_record = expected.slots > PADDING_SLOT
    assert torch.equal(found.slots[~is_record], expected.slots[~is_record])
    slots = {}
    for mine, theirs in zip(found.slots[is_record].tolist(), expected.slots[is_record].tolist(), strict=True):
        assert mine > PADDING_SLOT
        assert slots.setdefault(twin.key_of(theirs), mine) == mine
    assert len(set(slots.values())) == len(slots)


def one_call(world, pools, kind, generator):
    """The same call of every pool; what they return."""
    table = int(torch.randint(0, len(world.rows), (), generator=generator))
    count = int(torch.randint(0, 200, (), generator=generator))
    if kind == "resolve":
        index = torch.int32 if torch.rand((), generator=generator) < 0.5 else torch.int64
        batch = drawn_batch(world, generator, index)
        trains = bool(torch.rand((), generator=generator) < 0.8)
        chunks = int(torch.randint(0, world.shape.chunks + 1, (), generator=generator))
        room = int(torch.randint(0, 6000, (), generator=generator))
        return [one.resolve(*batch, trains=trains, first_chunks=chunks, room=room) for one in pools], batch
    if kind == "rewrite":
        ids = drawn_ids(world.rows[table], count, generator)
        masks = drawn_masks(world.shape, count, generator)
        numbers = torch.rand(2, count, generator=generator) if count % 2 else (None, None)
        for one in pools:
            one.rewrite(table, ids, masks, *numbers)
    elif kind == "scale":
        for one in pools:
            one.scale_utilities(0.75, table if count % 2 else None)
    elif kind == "compact":
        pools[0].compact()
    else:
        ids = drawn_ids(world.rows[table], count, generator).unique()
        masks = drawn_masks(world.shape, len(ids), generator)
        masks = torch.where(masks == 0, torch.tensor(world.shape.whole), masks)
        block = drawn_block(world.shape, ids, masks, generator)
        for one in pools:
            one.load(table, block)
    return None, None


def drawn_block(shape, ids, masks, generator):
    live = int(shape.live_columns(masks).sum())
    numbers = {"none": 0, "row": len(ids), "full": live}

    def some(count, dtype=torch.float32):
        return torch.rand(count, generator=generator).to(dtype)

    chunks = live // shape.width
    utility = some(len(ids), torch.bfloat16), some(chunks, torch.bfloat16)
    states = some(numbers[shape.first_state]), some(numbers[shape.second_state])
    return ChunkedBlock(ids, masks, *utility, some(live, shape.dtype), *states)


@given(world=pool_worlds(), calls=st.lists(st.sampled_from(CALLS), max_size=12), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=150)
def test_any_sequence_of_calls_leaves_the_same_rows(world, calls, seed):
    generator = torch.Generator().manual_seed(seed)
    pool, twin = world.pools()
    for kind in calls:
        results, batch = one_call(world, (pool, twin), kind, generator)
        if results is not None:
            check_resolved(*results, twin, batch[1], batch[0])
    check_same_rows(world, pool, twin)
    check_bytes(world, pool, twin)
    pool.compact()
    check_same_rows(world, pool, twin)
    check_bytes(world, pool, twin)


@given(world=pool_worlds(), calls=st.lists(st.sampled_from(CALLS), max_size=12), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=25)
def test_the_number_of_threads_changes_no_slot(world, calls, seed):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(seed)
            pool, slots = world.pools()[0], []
            for kind in [*calls, "resolve"]:
                found, _ = one_call(world, (pool,), kind, generator)
                slots += [found[0].slots] if found else []
            results.append((torch.cat(slots), pool.statistics()))
    finally:
        torch.set_num_threads(before)
    for slots, statistics in results[1:]:
        assert torch.equal(slots, results[0][0])
        assert statistics == results[0][1]


def table_of(rows, dim=16, name="t"):
    return PooledTable(rows, StartValues(1, name, dim, 1.0))


def test_the_index_takes_the_form_of_fewest_bytes():
    """Few rows are hashed, some are bits with ranks, nearly all an array; each finds the same rows."""
    shape, rows = ChunkShape(16, 4), 100_000
    forms = []
    for share in (0.001, 0.01, 0.03, 0.5, 0.96, 0.97, 1.0):
        pool = ChunkedRows([table_of(rows)], shape, CAPACITY)
        ids = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[: int(share * rows)]
        pool.rewrite(0, ids, torch.ones_like(ids))
        hashed = pool.statistics().bytes.index
        pool.compact()
        statistics = pool.statistics()
        forms.append(statistics.index_forms[0])
        assert statistics.bytes.index <= hashed
        assert torch.equal(pool.ids(0, count=rows), ids.sort().values)
        lookups = torch.tensor([[0, 0, rows]])
        slots = pool.resolve(lookups, torch.arange(rows), trains=True).slots
        assert torch.equal((slots > 0).nonzero().view(-1), ids.sort().values)
        # A row that comes later is found beside it, and one that leaves is not.
        pool.rewrite(0, ids[:5], torch.zeros(5, dtype=torch.int64))
        absent = torch.ones(rows, dtype=torch.bool)
        absent[ids[5:]] = False
        later = absent.nonzero().view(-1)[-3:]
        pool.rewrite(0, later, torch.full((3,), 3))
        again = pool.resolve(lookups, torch.arange(rows), trains=True).slots
        assert int((again > 0).sum()) == len(ids) - 5 + 3
        assert (again[later] > 0).all()
    assert forms == [INDEX_FORMS[n] for n in (0, 0, 1, 1, 1, 2, 2)]


def test_new_rows_come_in_the_order_of_the_batch_while_there_is_room():
    shape = ChunkShape(8, 2, first_state="row")
    pool = ChunkedRows([table_of(50, 8, "a"), table_of(50, 8, "b")], shape, CAPACITY)
    bytes_ = pool.statistics().row_bytes[2]
    values, lookups = torch.tensor([7, 3, 7, 9, 3, 1, 2]), torch.tensor([[0, 0, 4], [1, 4, 7]])
    found = pool.resolve(lookups, values, trains=True, first_chunks=2, room=3 * bytes_ + 5)
    assert found.room == 5
    assert found.absent.tolist() == [[1, 3], [1, 1], [1, 2]]
    assert (found.slots[:4] > 0).all()
    assert found.slots[4:].tolist() == [FIRST_ABSENT, FIRST_ABSENT + 1, FIRST_ABSENT + 2]
    assert pool.masks(0, torch.tensor([7, 3, 9, 1])).tolist() == [3, 3, 3, 0]
    block = pool.read(0, torch.tensor([7]))
    start = torch.empty(1, 8)
    start_values_(start, StartValues(1, "a", 8, 1.0), first=7)
    assert torch.equal(block.weights, start[0, :4])


RESIDENT = """
import torch
from dataclasses import astuple
from pathlib import Path
from megalith.ops.chunks.blocks import ChunkShape
from megalith.ops.chunks.chunked_rows import ChunkedRows
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import PooledTable

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

rows = 400_000
table = PooledTable(rows, StartValues(1, "t", 64, 1.0))
pool = ChunkedRows([table], ChunkShape(64, 16, first_state="row"), 1 << 30)
ids, all_live = torch.arange(rows), torch.full((rows,), 15)
kept = torch.where(ids % 4 == 0, 1, 0)
before = resident()
for masks in (all_live, kept, all_live):
    pool.rewrite(0, ids, masks)
    pool.compact()
    print(resident() - before, *astuple(pool.statistics().bytes))
"""


IS_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
"""The sanitizer's own memory is resident too: it holds freed memory back, 10 MB by the third line, and where
it is told not to (quarantine_size_mb=0) 3 MB of shadow are left. What the pool says of itself is the same."""


def test_memory_goes_back_to_the_system():
    """Rows of four chunks, a quarter of them with one, and all again: resident memory follows."""
    result = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    totals = []
    for line in result.stdout.splitlines():
        resident, *parts = map(int, line.split())
        found = ChunkedBytes(*parts)
        assert abs(resident - found.total) < 0.05 * found.total + (1 << 20) or IS_SANITIZED
        assert found.free < 0.03 * found.total + (64 << 10)
        totals.append(found.total)
    assert totals[1] < 0.08 * totals[0]
    assert abs(totals[2] - totals[0]) < 0.01 * totals[0]


def test_small_pools_are_packed_to_the_page():
    """Of rows of two lengths one in ten stays; no more than a page of each length is partly free."""
    rows = 3000
    pool = ChunkedRows([PooledTable(rows, StartValues(1, "t", 16, 1.0))], ChunkShape(16, 4), 1 << 24)
    ids = torch.arange(rows)
    pool.rewrite(0, ids, torch.where(ids % 3 == 0, 15, 1))
    stays = ids % 10 == 0
    before = pool.read(0, ids[stays])
    pool.rewrite(0, ids[~stays], torch.zeros(rows - rows // 10, dtype=torch.int64))
    pool.compact()
    assert pool.statistics().bytes.free < 2 * 4096
    assert all(map(torch.equal, pool.read(0, ids[stays]), before))


def test_a_block_expands_and_comes_back():
    @given(shape=shapes(), seed=st.integers(0, 2**31))
    @settings(deadline=None, max_examples=40)
    def check(shape, seed):
        generator = torch.Generator().manual_seed(seed)
        masks = drawn_masks(shape, 9, generator, empty=0.0)
        block = drawn_block(shape, torch.arange(9), masks, generator)
        rows = block.expanded(shape)
        assert rows.weight.shape == (9, shape.dim)
        assert not rows.weight[~shape.live_columns(masks)].any()
        again = compressed(shape, block.ids, masks, block.growth, block.utilities, rows)
        assert equal_blocks(block, again)

    check()


def test_more_than_the_addresses_that_are_reserved_is_one_sentence():
    shape = ChunkShape(64, 64)
    pool = ChunkedRows([table_of(100_000, 64)], shape, 1 << 20)
    with pytest.raises(OutOfMemoryError, match="change the live chunks"):
        pool.rewrite(0, torch.arange(100_000), torch.ones(100_000, dtype=torch.int64))
    # What there is can still be read, and there is room again when rows leave.
    ids = pool.ids(0)
    assert len(pool.read(0, ids).weights) == 64 * len(ids)
    pool.rewrite(0, ids, torch.zeros_like(ids))
    pool.rewrite(0, ids, torch.ones_like(ids))
    assert torch.equal(pool.ids(0), ids)


def test_odd_arguments_are_refused():
    with pytest.raises(ConfigError, match="use one of 1, 2, 3, 4, 6, 12"):
        ChunkShape(12, 5)
    world = PoolWorld(ChunkShape(12, 4), (10,), (-1,))
    pool, _ = world.pools()
    with pytest.raises(NativeError, match="id 10 of a table of 10 rows"):
        pool.rewrite(0, torch.tensor([10]), torch.tensor([1]))
    with pytest.raises(NativeError, match="names chunks"):
        pool.rewrite(0, torch.tensor([1]), torch.tensor([8]))
    with pytest.raises(NativeError, match="has not"):
        pool.resolve(torch.tensor([[0, 0, 1]]), torch.tensor([-1]), trains=False)
    with pytest.raises(NativeError, match="is not there"):
        pool.read(0, torch.tensor([1]))
    with pytest.raises(ValueError, match="a lookup names"):
        pool.resolve(torch.tensor([[1, 0, 1]]), torch.tensor([1]), trains=False)
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        pool.compact()
