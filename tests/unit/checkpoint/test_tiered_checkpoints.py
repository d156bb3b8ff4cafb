"""Checkpoints of tables in pools of rows: any cut and store loads any other, and one costs what changed."""

import itertools
import re
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.checkpoint import pool_files
from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.core.errors import CheckpointError, StorageError
from row_pools import STATES, Table, contents, make_pool, train


@st.composite
def cuts(draw, rows, dim):
    """Rectangles that are the whole table: cut by rows, then each part by columns of its own."""
    row_ends = sorted({0, rows, *draw(st.lists(st.integers(1, rows - 1), max_size=2))})
    rectangles = []
    for start, stop in itertools.pairwise(row_ends):
        ends = sorted({0, dim, *draw(st.lists(st.integers(1, max(1, dim - 1)), max_size=1))})
        rectangles += [((start, stop), columns) for columns in itertools.pairwise(ends)]
    return rectangles


@st.composite
def layouts(draw, tables):
    """For every rectangle of a cut of each table, the store that keeps it."""
    rectangles = [(table, each) for table in tables for each in draw(cuts(table.rows, table.dim))]
    return [(*each, draw(st.sampled_from(["dense", "tiered"]))) for each in rectangles]


def build(folder, layout, tables, values, trained):
    """The tables of a layout with values; the rectangles of one width share a pool."""
    shards = {table.name: [] for table in tables}
    pools = {}
    for table, rectangle, kind in layout:
        if kind == "dense":
            shards[table.name].append(table.dense(values[table.name], rectangle))
        else:
            pools.setdefault(rectangle[1][1] - rectangle[1][0], []).append((table, rectangle))
    for width, windows in pools.items():
        pool = make_pool(Path(folder) / str(width), windows)
        batch = 1
        for number, (table, rectangle) in enumerate(windows):
            first, last = rectangle[0]
            ids = [row - first for row in trained[table.name] if first <= row < last]
            batch = train(pool, number, ids, table.cut(values[table.name], rectangle), batch)
            shards[table.name].append(pool.shard(number))
    return {table.name: table.state(shards[table.name]) for table in tables}


def same_rows(state, tables, values):
    """Whether every shard holds, bit by bit, what the whole tables hold."""
    return all(
        torch.equal(contents(shard)[0][name], part)
        for table in tables
        for shard in state[table.name].shards
        for name, part in table.cut(values[table.name], (shard.rows, shard.columns)).items()
    )


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    states = STATES[draw(st.sampled_from(sorted(STATES)))]
    dim = draw(st.integers(1, 9))
    tables = [
        Table(f"t{number}", draw(st.integers(2, 60)), dim, dtype, states)
        for number in range(draw(st.integers(1, 2)))
    ]
    trained = {table.name: draw(st.sets(st.integers(0, table.rows - 1))) for table in tables}
    return tables, trained, draw(layouts(tables)), draw(layouts(tables))


@given(case=cases(), file_bytes=st.sampled_from([1, 200, 1 << 20]), again=st.booleans())
@settings(max_examples=60, deadline=None)
def test_tables_saved_in_any_stores_load_in_any_others(case, file_bytes, again):
    tables, trained, saved, loaded = case
    values = {table.name: table.truth(trained[table.name]) for table in tables}
    nothing = {table.name: table.truth(()) for table in tables}
    stale = {table.name: {0, table.rows - 1} if again else set() for table in tables}
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoints", file_bytes=file_bytes)
        store.save(1, build(Path(folder) / "saved", saved, tables, values, trained), {})
        before = {table.name: table.truth(stale[table.name]) for table in tables} if again else nothing
        state = build(Path(folder) / "loaded", loaded, tables, before, stale)
        store.load(1, state)
        assert same_rows(state, tables, values)
        # And once more from there, into what it came from.
        store.save(2, state, {})
        back = build(Path(folder) / "back", saved, tables, nothing, {table.name: () for table in tables})
        store.load(2, back)
        assert same_rows(back, tables, values)


TABLE = Table("t", 4000, 16)


def trained_pool(folder, trained=range(0, 4000, 2), **settings):
    pool = make_pool(folder, [(TABLE, TABLE.whole())], **settings)
    batch = train(pool, 0, trained, TABLE.truth(trained), 1)
    return pool, batch


def new_pool(folder, **settings):
    return make_pool(folder, [(TABLE, TABLE.whole())], **settings)


def state_of(pool):
    return {"tables": {"t": TABLE.state([pool.shard(0)])}}


def test_rows_that_were_never_trained_are_in_no_file_and_load_as_they_begin(tmp_path):
    pool, _ = trained_pool(tmp_path / "rows")
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    manifest = read_manifest(store.path(1))
    assert manifest.tables["tables/t"].blocks == ()
    (sparse,) = manifest.tables["tables/t"].sparse
    assert (sparse.rows, sparse.columns) == TABLE.whole()
    dense = TABLE.dense(TABLE.truth(range(4000)), TABLE.whole())
    store.load(1, {"tables": {"t": TABLE.state([dense])}})
    for name, part in TABLE.truth(range(0, 4000, 2)).items():
        assert torch.equal(dense.parts[name], part)


def test_a_dense_checkpoint_brings_only_changed_rows_to_a_pool(tmp_path):
    trained = {5, 6, 999, 3999}
    store = CheckpointStore(tmp_path / "checkpoints", file_bytes=10_000)
    dense = TABLE.dense(TABLE.truth(trained), TABLE.whole())
    store.save(1, {"tables": {"t": TABLE.state([dense])}}, {})
    pool = new_pool(tmp_path / "rows")
    store.load(1, state_of(pool))
    held, listed = contents(pool.shard(0))
    assert listed == trained
    assert all(torch.equal(held[name], part) for name, part in TABLE.truth(trained).items())


def test_the_same_pool_takes_the_files_themselves(tmp_path):
    pool, _ = trained_pool(tmp_path / "rows")
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    saved = {path.name: path.stat().st_ino for path in store.path(1).rglob("*.rows")}
    assert len(saved) > 3
    # Another size of cache, and larger segments, are not another layout.
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "0000000000000001.rows").write_text("of a run that was killed")
    again = new_pool(tmp_path / "again", capacity=900, segment_bytes=50_000)
    store.load(1, state_of(again))
    assert {path.name: path.stat().st_ino for path in (tmp_path / "again").iterdir()} == saved
    assert again.rows.statistics().written_bytes == 0
    held, listed = contents(again.shard(0))
    assert listed == set(range(0, 4000, 2))
    # Smaller ones are: the rows are read and written.
    other = new_pool(tmp_path / "other", segment_bytes=16_000)
    store.load(1, state_of(other))
    assert other.rows.statistics().written_bytes > 0
    both = contents(other.shard(0))[0]
    assert all(torch.equal(held[name], both[name]) for name in held)


def new_bytes(folder, known):
    """What the files below a folder take that were not there before, each file counted once."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            files[status.st_ino] = status.st_size
    return sum(size for inode, size in files.items() if inode not in known), files


def test_a_checkpoint_costs_what_changed(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(pool_files, "sync_file", synced.append)
    pool, batch = trained_pool(tmp_path / "rows", range(4000), space_percent=300)
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    whole, known = new_bytes(tmp_path, {})
    few = range(60)
    train(pool, 0, few, TABLE.truth(()), batch)
    store.save(2, state_of(pool), {})
    cost, _ = new_bytes(tmp_path, known)
    row_bytes = TABLE.dim * 4 + 4 + 4
    assert whole > 4000 * row_bytes
    # The rows, blocks of 4 KiB around them, the list of segments and the manifest.
    assert len(few) * row_bytes < cost < len(few) * row_bytes + 5 * 4096 + 8 * 4000 // 64 + 4000
    new = {path.name for path in store.path(2).rglob("*.rows")} - {
        path.name for path in store.path(1).rglob("*.rows")
    }
    assert {path.name for path in synced if ".step-00000002" in str(path)} == new
    store.save(3, state_of(pool), {})
    assert not any(".step-00000003" in str(path) for path in synced)
    assert store.steps() == [2, 3]
    links = {path.stat().st_nlink for path in store.path(3).rglob("*.rows")}
    assert links == {3}
    # What an old checkpoint alone had is gone with it.
    assert {path.name for path in (tmp_path / "rows").iterdir()} == {
        path.name for path in store.path(3).rglob("*.rows")
    }


def test_what_older_checkpoints_keep_counts_after_a_resume(tmp_path):
    pool, batch = trained_pool(tmp_path / "rows", range(4000))
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    batch = train(pool, 0, range(4000), TABLE.truth(()), batch)
    store.save(2, state_of(pool), {})
    old, new = (inodes(store.path(step)) for step in (1, 2))
    only_old = set(old) - set(new)
    kept = sum(path.stat().st_size for path in store.path(1).rglob("*.rows") if path.name in only_old)
    assert kept > 0
    size = sum(path.stat().st_size for path in store.path(2).rglob("*.rows"))
    again = new_pool(tmp_path / "again", max_bytes=size + kept + 30_000)
    store.load(2, state_of(again))
    with pytest.raises(StorageError, match="older rows that checkpoints keep") as refused:
        train(again, 0, range(4000), TABLE.truth(()), 1)
    # With some of the second checkpoint that are replaced by now.
    assert kept <= int(re.search(r"full, (\d+) of", str(refused.value))[1]) < kept + size / 2


@pytest.fixture
def other_disk(tmp_path):
    """A folder on a file system that cannot be linked with that of tests."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.rglob("*.rows")}


def test_files_on_another_file_system_are_copied_once(tmp_path, other_disk):
    pool, batch = trained_pool(other_disk / "rows", range(4000), space_percent=300)
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    first = inodes(store.path(1))
    train(pool, 0, range(60), TABLE.truth(range(0, 4000, 3)), batch)
    store.save(2, state_of(pool), {}, background=True)
    store.wait()
    second = inodes(store.path(2))
    assert len(first.items() & second.items()) >= len(first) - 2
    assert len(second.items() - first.items()) == 1
    # A process that resumes copies them into its pool, and knows where they came from.
    other = CheckpointStore(tmp_path / "checkpoints")
    resumed = new_pool(other_disk / "resumed")
    other.load(2, state_of(resumed))
    other.save(3, state_of(resumed), {})
    assert inodes(other.path(3)) == second
    expected = TABLE.truth(range(4000))
    for name, part in expected.items():
        part[:60] = TABLE.truth(range(0, 4000, 3))[name][:60]
    assert all(torch.equal(part, expected[name]) for name, part in contents(resumed.shard(0))[0].items())
    # One that does not know trusts no name: it copies.
    stranger = CheckpointStore(tmp_path / "checkpoints")
    stranger.save(4, state_of(resumed), {})
    assert not inodes(stranger.path(4)).items() & second.items()


def test_a_background_save_holds_what_was_when_it_began(tmp_path):
    pool, batch = trained_pool(tmp_path / "rows", range(4000))
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {}, background=True)
    # Everything again: collection deletes the files that are being saved.
    for _ in range(3):
        batch = train(pool, 0, range(4000), TABLE.truth(()), batch)
    store.wait()
    assert not list((tmp_path / "rows").glob("held-*"))
    again = new_pool(tmp_path / "again")
    store.load(1, state_of(again))
    held, _ = contents(again.shard(0))
    assert all(torch.equal(held[name], part) for name, part in TABLE.truth(range(4000)).items())
    store.close()


def test_files_that_are_collected_before_they_are_held_are_looked_for_again(tmp_path, monkeypatch):
    """As when a batch is resolved ahead at that moment."""
    pool, batch = trained_pool(tmp_path / "rows", range(4000))
    flush, flushes = pool.rows.flush, []

    def and_collected():
        files = flush()
        flushes.append({file.name for file in files})
        if len(flushes) == 1:
            now = batch
            for _ in range(3):
                now = train(pool, 0, range(4000), TABLE.truth(range(4000)), now)
        return files

    monkeypatch.setattr(pool.rows, "flush", and_collected)
    held = pool.hold()
    assert len(flushes) == 2
    assert not flushes[0] <= flushes[1]
    assert {path.name for path in held.folder.iterdir()} == flushes[1]
    assert sum(len(block.ids) for _, block in held.blocks(1000)) == 4000


def test_two_tables_of_a_pool_are_flushed_once(tmp_path, monkeypatch):
    other = Table("other", 500, 16)
    pool = make_pool(tmp_path / "rows", [(TABLE, TABLE.whole()), (other, other.whole())])
    train(pool, 1, range(100), other.truth(range(100)), train(pool, 0, range(50), TABLE.truth(range(50)), 1))
    flushes = []
    flush = pool.rows.flush
    monkeypatch.setattr(pool.rows, "flush", lambda: flushes.append(1) or flush())
    state = {"t": TABLE.state([pool.shard(0)]), "other": other.state([pool.shard(1)])}
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state, {})
    assert len(flushes) == 1
    assert len(read_manifest(store.path(1)).pools) == 1
    # A state that lacks one of them, or has them under other names, is filled row by row.
    lone = TABLE.dense(TABLE.truth(()), TABLE.whole())
    store.load(1, {"t": TABLE.state([lone])})
    assert all(torch.equal(lone.parts[name], part) for name, part in TABLE.truth(range(50)).items())


def test_another_seed_is_refused_before_anything_changes(tmp_path):
    pool, _ = trained_pool(tmp_path / "rows", range(10))
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(1, state_of(pool), {})
    renamed = Table("renamed", TABLE.rows, TABLE.dim)
    dense = renamed.dense(TABLE.truth(range(7)), TABLE.whole())
    with pytest.raises(
        CheckpointError, match=r"untrained rows of table 'tables/t' have another seed or init_sc"
    ):
        store.load(1, {"tables": {"t": renamed.state([dense])}})
    assert all(torch.equal(dense.parts[name], part) for name, part in TABLE.truth(range(7)).items())
