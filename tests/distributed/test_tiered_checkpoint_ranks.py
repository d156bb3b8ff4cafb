"""Checkpoints of many ranks whose tables are in pools over a disk: any number loads what any other saved."""

import resource
import signal

import torch
from processes import on_ranks

from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import StorageError
from row_pools import Table, contents, make_pool, train

ROWS = Table("rows", 700, 12, torch.bfloat16)
COLUMNS = Table("columns", 400, 12, torch.bfloat16)
COPIED = Table("copied", 90, 12, torch.bfloat16)
TRAINED = {"rows": range(0, 700, 3), "columns": range(50, 300), "copied": range(40)}


def rectangles(ranks):
    """By table what a rank holds: some rows, some columns, a copy."""
    rank, count = ranks.rank, ranks.world_size
    rows = [ROWS.rows * one // count for one in range(count + 1)]
    columns = [COLUMNS.dim * one // count for one in range(count + 1)]
    return [
        (ROWS, ((rows[rank], rows[rank + 1]), (0, ROWS.dim)), True),
        (COLUMNS, ((0, COLUMNS.rows), (columns[rank], columns[rank + 1])), True),
        (COPIED, COPIED.whole(), rank == 0),
    ]


def tables_on(ranks, folder, filled, step=0):
    """The state of a rank, its pools in a folder of its own; rows of one width share a pool."""
    shards, by_width = {}, {}
    for table, rectangle, writes in rectangles(ranks):
        by_width.setdefault(rectangle[1][1] - rectangle[1][0], []).append((table, rectangle, writes))
    for width, held in by_width.items():
        pool = make_pool(
            folder / f"{ranks.world_size}-{ranks.rank}-{step}-{width}", [each[:2] for each in held]
        )
        batch = 1
        for number, (table, rectangle, writes) in enumerate(held):
            if filled:
                (first, last), _ = rectangle
                ids = [row - first for row in TRAINED[table.name] if first <= row < last]
                values = table.cut(table.truth(TRAINED[table.name]), rectangle)
                batch = train(pool, number, ids, values, batch)
            shards[table.name] = table.state([pool.shard(number, writes)])
    return shards


def holds_the_truth(state):
    for table in (ROWS, COLUMNS, COPIED):
        (shard,) = state[table.name].shards
        held, _ = contents(shard)
        expected = table.cut(table.truth(TRAINED[table.name]), (shard.rows, shard.columns))
        if not all(torch.equal(held[name], part) for name, part in expected.items()):
            return False
    return True


def save(folder, step):
    ranks = Ranks.all()
    store = CheckpointStore(folder / "checkpoints", ranks=ranks.with_own_group())
    store.save(step, tables_on(ranks, folder, True), {})


def load_and_save(folder, step):
    """Loads a step, saves it as the next: whether it is right, and what the load wrote to disk."""
    ranks = Ranks.all()
    store = CheckpointStore(folder / "checkpoints", keep=9, ranks=ranks.with_own_group())
    state = tables_on(ranks, folder, False, step)
    store.load(step, state)
    shards = [shard for table in state.values() for shard in table.shards]
    written = sum(pool.rows.statistics().written_bytes for pool in {shard.pool for shard in shards})
    store.save(step + 1, state, {})
    return holds_the_truth(state), written


def test_two_ranks_then_one_then_three(tmp_path):
    on_ranks(2, save, tmp_path, 1)
    store = CheckpointStore(tmp_path / "checkpoints")
    manifest = read_manifest(store.path(1))
    assert {pool.name[:14] for pool in manifest.pools} == {"segments-00000", "segments-00001"}
    # The same ranks take the files; other numbers read the rows, and what they then save is as good.
    assert on_ranks(2, load_and_save, tmp_path, 1) == [(True, 0)] * 2
    assert load_and_save(tmp_path, 2)[0]
    assert all(right for right, _ in on_ranks(3, load_and_save, tmp_path, 3))
    assert all(right for right, _ in on_ranks(2, load_and_save, tmp_path, 4))
    dense = {
        table.name: table.state([table.dense(table.truth(()), table.whole())])
        for table in (ROWS, COLUMNS, COPIED)
    }
    store.load(5, dense)
    assert holds_the_truth(dense)


def one_rank_without_room(folder):
    ranks = Ranks.all()
    store = CheckpointStore(folder / "checkpoints", ranks=ranks.with_own_group())
    store.save(1, tables_on(ranks, folder, True), {})
    state = tables_on(ranks, folder, True, step=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ranks.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    said = ""
    try:
        # Rows are put on disk before the save goes into the background, and that fails on one rank.
        store.save(2, state, {}, background=True)
        store.wait()
    except StorageError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.close()
    return said, store.steps()


def test_a_rank_that_cannot_put_its_rows_on_disk_is_heard_by_all(tmp_path):
    answers = on_ranks(2, one_rank_without_room, tmp_path)
    for said, steps in answers:
        assert ".rows could not be written at byte" in said
        assert steps == [1]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert not list(tmp_path.glob("*/held-*"))
