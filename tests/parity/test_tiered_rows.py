"""Pools of rows over a disk against a pool with room for every row: the same rows, whatever is in memory."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import StorageError
from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import POLICIES, DiskSettings, PooledTable, TieredRows
from megalith.ops.stores.tiered_rows_twin import TieredRowsTwin
from row_pools import brought

ENGINES = ("io_uring", "threads")
PARTS = {
    "weight alone": lambda dim: [(dim, torch.float32)],
    "one number a row": lambda dim: [(dim, torch.float32), (None, torch.float32)],
    "state as wide as the row": lambda dim: [
        (dim, torch.float32),
        (dim, torch.float32),
        (dim, torch.float32),
    ],
    "half precision": lambda dim: [(dim, torch.bfloat16), (None, torch.float32)],
}


@dataclass(frozen=True)
class World:
    """Tables, a pool and the batches that use it."""

    dim: int
    rows: tuple[int, ...]
    paddings: tuple[int, ...]
    parts: str
    capacity: int
    overflow: int | None
    policy: str
    engine: str
    window: int
    slot_ids: bool
    batches: tuple[tuple[bool, tuple[tuple[int, ...], ...]], ...]
    """(whether it trains, ids of every table)"""

    def tables(self):
        dtype = PARTS[self.parts](self.dim)[0][1]
        starts = [StartValues(3, f"t{n}", self.dim, 0.5, dtype) for n in range(len(self.rows))]
        both = zip(self.rows, starts, self.paddings, strict=True)
        return [PooledTable(rows, start, padding) for rows, start, padding in both]

    def memory(self):
        shapes = PARTS[self.parts](self.dim)
        return [
            torch.full((self.capacity + 1, *(() if dim is None else (dim,))), 7, dtype=dtype)
            for dim, dtype in shapes
        ]

    def pool(self, folder, memory=None, **changes):
        settings = {"segment_bytes": 40_000, "engine": self.engine, "threads": 3, "layout": 5, **changes}
        memory = self.memory() if memory is None else memory
        disk = DiskSettings(Path(folder), **settings)
        slot_ids = torch.empty(self.capacity + 1, dtype=torch.int64) if self.slot_ids else None
        return TieredRows(self.tables(), memory, disk, self.policy, self.overflow, slot_ids)


@st.composite
def worlds(draw):
    rows = draw(st.lists(st.integers(1, 300), min_size=1, max_size=3))
    most = 40
    ids = [
        st.lists(st.integers(0, min(count, draw(st.integers(1, 300))) - 1), max_size=most) for count in rows
    ]
    batch = st.tuples(st.booleans(), st.tuples(*(some.map(tuple) for some in ids)))
    capacity = draw(st.integers(most * len(rows) * 2, 400))
    return World(
        dim=draw(st.integers(1, 40)),
        rows=tuple(rows),
        paddings=tuple(draw(st.integers(-1, 3)) for _ in rows),
        parts=draw(st.sampled_from(sorted(PARTS))),
        capacity=capacity,
        overflow=draw(st.sampled_from([None, most * len(rows) * 2])),
        policy=draw(st.sampled_from(POLICIES)),
        engine=draw(st.sampled_from(ENGINES)),
        window=draw(st.integers(0, 3)),
        slot_ids=draw(st.booleans()),
        batches=tuple(draw(st.lists(batch, min_size=1, max_size=25))),
    )


def batch_of(ids):
    """Values of all tables one after the other, and where each table's are."""
    counts = torch.tensor([0, *(len(some) for some in ids)]).cumsum(0).tolist()
    lookups = torch.tensor([[table, counts[table], counts[table + 1]] for table in range(len(ids))])
    return torch.tensor([one for some in ids for one in some], dtype=torch.int64), lookups


def rows_by_id(pool):
    """(table, id) -> the bits of its parts."""
    found = {}
    for table, ids, parts in pool.rows():
        for position, row in enumerate(ids.tolist()):
            assert (table, row) not in found
            found[table, row] = [part[position].flatten().float().tolist() for part in parts]
    return found


def run(world, pool, twin, between=lambda number: None):
    """Trains both, one batch resolved ahead; every row that a batch reads is the same in both."""
    announced, pending = 0, []
    for number, (trains, ids) in enumerate(world.batches, start=1):
        while announced < min(number + world.window, len(world.batches)):
            announced += 1
            values, lookups = batch_of(world.batches[announced - 1][1])
            pool.expect(lookups, values, announced)
        values, lookups = batch_of(ids)
        slots = pool.resolve(lookups, values, number, trains)
        twin_slots = twin.resolve(lookups, values, number, trains)
        if pool.slot_ids is not None:
            padded = slots == pool.padding_slot
            assert torch.equal(pool.slot_ids[slots.long()], torch.where(padded, -1, values))
        pending.append((number, trains, slots.long(), twin_slots))
        between(number)
        if len(pending) == 2:
            compute(pool, twin, *pending.pop(0))
    for waiting in pending:
        compute(pool, twin, *waiting)


def compute(pool, twin, number, trains, slots, twin_slots):
    pool.arrive(number)
    for part, truth in zip(pool.parts, twin.parts, strict=True):
        assert torch.equal(part[slots], truth[twin_slots])
    if trains:
        kept = twin_slots != twin.padding_slot
        for part, truth in zip(pool.parts, twin.parts, strict=True):
            updated = truth[twin_slots[kept]] * 0.5 + number
            truth[twin_slots[kept]] = updated
            part[slots[kept]] = updated
    pool.release(number)


@given(world=worlds())
def test_rows_are_those_of_a_pool_with_room_for_all(world):
    with tempfile.TemporaryDirectory() as folder:
        pool = world.pool(folder)
        twin = TieredRowsTwin(world.tables(), pool.parts)
        run(world, pool, twin)
        files = pool.flush()
        expected = rows_by_id(twin)
        assert rows_by_id(pool) == expected
        assert pool.statistics().present_rows == len(expected)
        pool.close()
        reopened = world.pool(folder)
        reopened.open(files)
        assert rows_by_id(reopened) == expected
        reopened.close()


@given(world=worlds())
def test_a_pool_goes_on_from_its_files(world):
    middle = len(world.batches) // 2
    halves = [
        World(**{**world.__dict__, "batches": some})
        for some in (world.batches[:middle], world.batches[middle:])
    ]
    with tempfile.TemporaryDirectory() as folder:
        first = world.pool(folder)
        twin = TieredRowsTwin(world.tables(), first.parts)
        run(halves[0], first, twin)
        files = first.flush()
        first.close()
        second = world.pool(folder)
        second.open(files)
        run(halves[1], second, twin)
        second.flush()
        assert rows_by_id(second) == rows_by_id(twin)
        second.close()


@given(world=worlds(), flushed=st.sets(st.integers(1, 25)))
def test_a_flush_while_batches_are_under_way_loses_no_update(world, flushed):
    with tempfile.TemporaryDirectory() as folder:
        pool = world.pool(folder)
        twin = TieredRowsTwin(world.tables(), pool.parts)

        def flush(number):
            if number in flushed:
                pool.flush()
                assert rows_by_id(pool) == rows_by_id(twin)
                assert pool.statistics().present_rows == len(rows_by_id(twin))

        run(world, pool, twin, flush)
        pool.flush()
        assert rows_by_id(pool) == rows_by_id(twin)
        assert pool.statistics().present_rows == len(rows_by_id(twin))
        pool.close()


@given(world=worlds())
def test_rows_are_read_wherever_they_lie(world):
    with tempfile.TemporaryDirectory() as folder:
        pool = world.pool(folder)
        twin = TieredRowsTwin(world.tables(), pool.parts)
        run(world, pool, twin)
        before = pool.statistics()
        for table, rows in enumerate(world.rows):
            ids = torch.randperm(rows)
            for part, truth in zip(pool.read(table, ids), twin.read(table, ids), strict=True):
                assert torch.equal(part, truth)
        after = pool.statistics()
        assert after[:6] == before[:6]
        assert after.dirty_rows == before.dirty_rows
        pool.close()


@given(world=worlds())
def test_reading_alone_writes_nothing(world):
    reading = World(**{**world.__dict__, "batches": tuple((False, ids) for _, ids in world.batches)})
    with tempfile.TemporaryDirectory() as folder:
        pool = reading.pool(folder)
        run(reading, pool, TieredRowsTwin(reading.tables(), pool.parts))
        assert pool.flush() == []
        statistics = pool.statistics()
        assert statistics.written_bytes == statistics.present_rows == statistics.reads == 0
        pool.close()


@given(world=worlds(), data=st.data())
def test_rows_that_are_loaded_replace_what_was_there(world, data):
    table = data.draw(st.integers(0, len(world.rows) - 1))
    ids = data.draw(st.lists(st.integers(0, world.rows[table] - 1), unique=True, max_size=30))
    with tempfile.TemporaryDirectory() as folder:
        pool = world.pool(folder)
        twin = TieredRowsTwin(world.tables(), pool.parts)
        run(world, pool, twin)
        given_ids = torch.tensor(ids, dtype=torch.int64)
        rows = [torch.full((len(ids), *part.shape[1:]), 9, dtype=part.dtype) for part in pool.parts]
        pool.load(table, given_ids, rows)
        twin.load(table, given_ids, rows)
        pool.flush()
        assert rows_by_id(pool) == rows_by_id(twin)
        pool.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trained_row_of_zeros_is_there(policy, tmp_path):
    memory = [torch.zeros(301, 4)]
    pool = TieredRows(
        [PooledTable(5000, StartValues(1, "t", 4, 1.0))], memory, DiskSettings(tmp_path), policy
    )
    values, lookups = torch.tensor([17]), torch.tensor([[0, 0, 1]])
    memory[0][brought(pool, lookups, values, 1, trains=True).long()] = 0.0
    pool.release(1)
    for number in range(2, 40):
        others = torch.arange(100) + 100 * number
        pool.resolve(torch.tensor([[0, 0, 100]]), others, number, trains=True)
        pool.release(number)
    read_before = pool.statistics().read_rows
    assert pool.statistics().written_back_rows > 3000
    assert not memory[0][brought(pool, lookups, values, 40, trains=False).long()].any()
    assert pool.statistics().read_rows == read_before + 1


@pytest.mark.parametrize("policy", POLICIES)
def test_reading_after_training_writes_nothing(policy, tmp_path):
    """Every row in memory is changed, and yet none leaves for rows that are only read."""
    memory = [torch.zeros(1025, 4)]
    pool = TieredRows(
        [PooledTable(50_000, StartValues(1, "t", 4, 1.0))],
        memory,
        DiskSettings(tmp_path, segment_bytes=40_000),
        policy,
        overflow=256,
    )
    lookups, number = torch.tensor([[0, 0, 100]]), 0
    for ids in torch.arange(20_000).split(100):
        number += 1
        memory[0][brought(pool, lookups, ids, number, trains=True).long()] = ids[:, None].float()
        pool.release(number)
    before = pool.statistics()
    assert before.dirty_rows >= 700
    for _ in range(2):
        for ids in torch.arange(50_000).split(100):
            number += 1
            rows = memory[0][brought(pool, lookups, ids, number, trains=False).long()]
            trained = ids < 20_000
            assert torch.equal(rows[trained], ids[trained, None].float().expand(-1, 4))
            pool.release(number)
    after = pool.statistics()
    assert after.written_bytes == before.written_bytes
    assert after.written_back_rows == before.written_back_rows
    assert after.dirty_rows == before.dirty_rows
    # Training goes on: rows that were read meanwhile do not fill the room of rows that are read.
    for ids in torch.arange(50_000).split(100):
        number += 1
        rows = memory[0][brought(pool, lookups, ids, number, trains=True).long()]
        assert torch.equal(rows[ids < 20_000], ids[ids < 20_000, None].float().expand(-1, 4))
        pool.release(number)
    before = pool.statistics()
    for ids in torch.arange(20_000, 50_000).split(100):
        number += 1
        pool.resolve(lookups, ids, number, trains=False)
        pool.release(number)
    assert pool.statistics().written_back_rows == before.written_back_rows


def test_more_rows_in_flight_than_the_cache_holds_are_one_sentence(tmp_path):
    memory = [torch.zeros(101, 4)]
    pool = TieredRows([PooledTable(5000, StartValues(1, "t", 4, 1.0))], memory, DiskSettings(tmp_path))
    with pytest.raises(StorageError, match="do not fit into the cache of 100 rows"):
        pool.resolve(torch.tensor([[0, 0, 200]]), torch.arange(200), 1, trains=True)


def test_what_leaves_is_not_what_the_window_uses(tmp_path):
    """A row that is read in every fourth batch is read from disk again under LRU, and not with look-ahead."""
    reads = {}
    for policy in ("lru", "lookahead"):
        (tmp_path / policy).mkdir()
        memory = [torch.zeros(601, 4)]
        tables = [PooledTable(1_000_000, StartValues(1, "t", 4, 1.0))]
        pool = TieredRows(tables, memory, DiskSettings(tmp_path / policy), policy, overflow=200)
        ids = [
            torch.cat([torch.arange(100), torch.arange(100) + 1000 * n])
            if n % 4 == 0
            else torch.arange(200) + 1000 * n
            for n in range(1, 81)
        ]
        lookups = torch.tensor([[0, 0, 200]])
        for number in range(1, 81):
            for ahead in range(number, min(number + 5, 81)):
                pool.expect(lookups, ids[ahead - 1], ahead)
            pool.resolve(lookups, ids[number - 1], number, trains=True)
            pool.release(number)
        reads[policy] = pool.statistics().read_rows
    assert reads["lru"] > 1000
    assert reads["lookahead"] < 0.2 * reads["lru"]
