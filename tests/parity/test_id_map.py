"""Maps of ids against the plain truth: every row, every id that begins or leaves, whatever the stream."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from id_streams import CROWDED, IdWorld, NativeRun, Step, TwinRun, batch_of, id_worlds

from megalith.ops.ids.changes import IdBlock
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.id_map_twin import IdMapTwin
from megalith.ops.ids.partitions import id_partitions, partitions_of_rank
from megalith.ops.ids.policies import IdAdmission, IdEviction, IdTableSpec


@contextmanager
def torch_threads(count):
    """More threads than the tests have by themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_saving(world):
    """After loading, rows may be others where there were free ones; decisions are compared without."""
    steps = tuple(step for step in world.steps if step.kind != "save")
    return IdWorld(world.tables, world.lookups, world.lag, steps)


def decided(outcome):
    """Decisions alone: which ids have a row, began and left, not which row."""
    if len(outcome) == 3:
        rows, new, evicted = outcome
        named = [row >= 0 for row in rows], [(table, id_) for table, _, id_ in new]
        return *named, [(table, id_, reason) for table, id_, _, reason in evicted]
    return None


@given(world=id_worlds())
def test_every_decision_is_that_of_the_twin(world):
    world = without_saving(world)
    native, twin = NativeRun(world), TwinRun(world)
    for step in world.steps:
        assert native.run(step) == twin.run(step), step
    for table in range(len(world.tables)):
        assert native.saved(table) == twin.map.scan(table)
        found, counts = native.maps[0].statistics(table), twin.map.statistics[table]
        assert found[:5] == tuple(counts[n] for n in ("lookups", "hits", "admitted", "refused", "full"))
        assert found[5:10] == tuple(counts[n] for n in ("bound", "shrunk", "batches", "seconds", "score"))
        assert found.ids == len(twin.map.scan(table)) <= found.bound


@given(world=id_worlds())
def test_a_map_that_was_saved_and_loaded_decides_the_same(world):
    native, twin = NativeRun(world), TwinRun(world)
    for step in world.steps:
        found, expected = native.run(step), twin.run(step)
        if step.kind in ("train", "evaluate"):
            assert decided(found) == decided(expected)
        elif step.kind == "save":
            kept = [[(id_, *use) for id_, _, *use in entries] for entries in found]
            assert kept == [[(id_, *use) for id_, _, *use in entries] for entries in expected]


@given(world=id_worlds(), ranks=st.sampled_from([2, 3, 5, 64]))
@settings(max_examples=50)
def test_ranks_decide_what_one_map_decides(world, ranks):
    world = without_saving(world)
    cuts = [partitions_of_rank(rank, ranks) for rank in range(ranks)]
    assert [first for first, _ in cuts] + [64] == [0] + [last for _, last in cuts]
    native, whole = NativeRun(world, cuts), NativeRun(world)
    for step in world.steps:
        assert native.run(step) == whole.run(step)


@given(world=id_worlds())
@settings(max_examples=50)
def test_the_order_of_values_does_not_matter(world):
    world = without_saving(world)
    native, shuffled = NativeRun(world), NativeRun(world, shuffled=True)
    for step in world.steps:
        # A value's event time goes with its position, so it moves with it.
        assert shuffled.run(step) == native.run(step)


@given(world=id_worlds(), threads=st.sampled_from([0, 2]))
@settings(max_examples=50)
def test_any_number_of_threads_decides_the_same(world, threads):
    world = without_saving(world)
    one, several = NativeRun(world), NativeRun(world, threads=threads)
    with torch_threads(3):
        for step in world.steps:
            assert several.run(step) == one.run(step)


@pytest.mark.parametrize("kind", ["lru", "lfu", "score"])
@pytest.mark.parametrize("admission", ["always", "count"])
def test_a_large_partition_decides_as_the_twin(kind, admission):
    """More rows than a sample of the queue, an index that grows, hundreds of rows that leave."""
    generator = np.random.default_rng(5)
    every = torch.from_numpy(generator.integers(-(2**63), 2**63, 400_000))
    pool = every[id_partitions(every) == 9]
    spec = IdTableSpec(
        64 * 1300,
        IdAdmission(admission, count=2, counter_bytes=1 << 18),
        IdEviction(kind, halve_every=4, half_life=3),
    )
    native, twin = IdMap([spec], lag=2), IdMapTwin([spec], lag=2)
    for batch in range(1, 41):
        chosen = (len(pool) * generator.random(400) ** 2).astype(np.int64)
        values = pool[torch.from_numpy(chosen)]
        rows, new, evicted = native.resolve(torch.tensor([[0, 0, 400]]), values, batch, trains=True)
        expected = twin.resolve([(0, 0, 400)], values.tolist(), batch, trains=True)
        assert rows.tolist() == expected[0]
        assert new.ids.tolist() == [id_ for _, _, id_ in expected[1]]
        assert evicted.ids.tolist() == [id_ for _, id_, _, _ in expected[2]]
    statistics = native.statistics(0)
    assert statistics.ids == 1300
    assert statistics.evicted > 200


@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from(CROWDED[:60]),
            st.integers(0, 9),
            st.sampled_from([0.0, 0.5, 1.0, 3.0]),
            st.integers(0, 9),
        ),
        max_size=80,
    ),
    kind=st.sampled_from(["lru", "lfu"]),
    cut=st.sampled_from([(0, 64), (0, 32)]),
)
def test_loading_more_than_there_is_room_for_keeps_the_highest_ranks(entries, kind, cut):
    spec = IdTableSpec(64 * 3, eviction=IdEviction(kind))
    native, twin = IdMap([spec], partitions=cut), IdMapTwin([spec], partitions=cut)
    half = len(entries) // 2
    for some in (entries[:half], entries[half:]):
        columns = list(zip(*some, strict=True)) or [()] * 4
        ids, last, scores, times = (torch.tensor(column) for column in columns)
        rows, left = native.load(0, IdBlock(ids, ids, last, scores, times))
        expected, expected_left = twin.load(0, some)
        assert rows.tolist() == expected
        assert left.ids.tolist() == [id_ for _, id_, _, _ in expected_left]
        assert left.rows.tolist() == [row for _, _, row, _ in expected_left]
    assert [id_ for block in native.scan(0, block=7) for id_ in block.ids.tolist()] == [
        entry[0] for entry in twin.scan(0)
    ]


def test_an_evaluation_changes_nothing():
    step = Step("train", 1, (tuple(CROWDED[:50] * 2),))
    world = IdWorld((IdTableSpec(64 * 9, IdAdmission("count", count=2)),), (0,), 0, (step,))
    run = NativeRun(world)
    run.run(step)
    before = run.saved(0), run.maps[0].counter(0), run.maps[0].statistics(0)
    for _ in range(3):
        rows, new, evicted = run.run(Step("evaluate", 2, (tuple(CROWDED[:90]),)))
        assert not new
        assert not evicted
        assert -1 in rows
        assert len(set(rows)) > 20
    after = run.saved(0), run.maps[0].counter(0), run.maps[0].statistics(0)
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


@given(world=id_worlds())
def test_a_table_that_was_cleared_decides_as_the_twin(world):
    world = without_saving(world)
    native, twin = NativeRun(world), TwinRun(world)
    for number, step in enumerate(world.steps):
        assert native.run(step) == twin.run(step), step
        if number == len(world.steps) // 2:
            for one in (*native.maps, twin.map):
                one.clear(0)
            assert native.saved(0) == twin.map.scan(0) == []
    assert native.maps[0].statistics(0)[:2] == tuple(twin.map.statistics[0][n] for n in ("lookups", "hits"))


@given(world=id_worlds(), seed=st.integers(0, 2**32))
def test_guesses_of_rows_change_no_decision(world, seed):
    """Right ones, those of other ids, of free rows and of none."""
    world = without_saving(world)
    twin, ids = TwinRun(world), IdMap(world.tables, world.lag)
    generator = torch.Generator().manual_seed(seed)
    native = NativeRun(world)
    native.maps = [ids]
    for step in world.steps:
        if step.kind not in ("train", "evaluate"):
            assert native.run(step) == twin.run(step)
            continue
        lookups, values, times = batch_of(world, step)
        given_values = torch.tensor(values, dtype=torch.int64)
        asked = torch.tensor(lookups, dtype=torch.int64).view(-1, 3)
        guesses = ids.resolve(asked, given_values, step.batch, trains=False).rows
        wrong = torch.rand(len(values), generator=generator) < 0.3
        random_rows = torch.randint(-1, 200, (len(values),), generator=generator, dtype=torch.int32)
        inside = torch.zeros(len(values), dtype=torch.bool)
        for _, first, last in lookups:
            inside[first:last] = True
        guesses = torch.where(wrong & inside, random_rows, guesses)
        found = ids.resolve(
            asked, given_values, step.batch, step.kind == "train", torch.tensor(times), guesses=guesses
        )
        rows, new, evicted = twin.run(step)
        assert found.rows.tolist() == rows
        assert list(zip(*(part.tolist() for part in found.new), strict=True)) == sorted(
            new, key=lambda each: (each[0], partition_of(each[2]))
        )
        assert len(found.evicted.ids) == len(evicted)
    for table in range(len(world.tables)):
        assert native.saved(table) == twin.map.scan(table)
        counts = twin.map.statistics[table]
        assert ids.statistics(table)[:2] == (counts["lookups"], counts["hits"])


def partition_of(id_):
    return int(id_partitions(torch.tensor([id_]))[0])
