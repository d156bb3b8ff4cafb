"""Checkpoints of many ranks: any number loads what any other saved; errors reach all; commits are atomic."""

import os
import resource
import signal

import pytest
import torch
from processes import on_ranks

from megalith.checkpoint.store import CheckpointStore, read_manifest
from megalith.core.errors import CheckpointError, StorageError
from megalith.sharding.runtime.ranks import Ranks
from megalith.sharding.runtime.sharded_table import ShardedTable, TableShard

ROWS, DIM = 40, 6


def truth():
    return torch.arange(float(ROWS * DIM)).view(ROWS, DIM)


def state_of(ranks, filled):
    """A table cut by rows, one by columns with row states on every rank, one on the last, one copied."""
    rank, count = ranks.rank, ranks.world_size
    whole = truth() if filled else torch.zeros(ROWS, DIM)
    rows = [ROWS * one // count for one in range(count + 1)]
    columns = [DIM * one // count for one in range(count + 1)]
    by_rows = TableShard(whole[rows[rank] : rows[rank + 1]].clone(), (rows[rank], 0))
    by_columns = TableShard(whole[:, columns[rank] : columns[rank + 1]].clone(), (0, columns[rank]))
    copy = TableShard(whole.clone(), (0, 0), writes=rank == 0)
    row_state = TableShard(whole[:, 0].clone(), (0,), writes=rank == 0)
    last = [TableShard(whole.clone(), (0, 0))] if rank == count - 1 else []
    return {
        "rows": ShardedTable((ROWS, DIM), torch.float32, [by_rows]),
        "columns": ShardedTable((ROWS, DIM), torch.float32, [by_columns]),
        "state": ShardedTable((ROWS,), torch.float32, [row_state]),
        "last": ShardedTable((ROWS, DIM), torch.float32, last),
        "copied": ShardedTable((ROWS, DIM), torch.float32, [copy]),
        "dense": {"weight": torch.full((3,), 5.0 * filled), "step": 7 if filled else 0},
    }


def shards_of(state):
    return [shard for value in state.values() if isinstance(value, ShardedTable) for shard in value.shards]


def holds_the_truth(state):
    for tensor, offsets, _ in shards_of(state):
        expected = truth() if len(offsets) == 2 else truth()[:, :1]
        column = offsets[1] if len(offsets) == 2 else 0
        width = tensor.shape[1] if tensor.dim() == 2 else 1
        part = expected[offsets[0] : offsets[0] + tensor.shape[0], column : column + width]
        if not torch.equal(tensor.view(part.shape), part):
            return False
    return state["dense"]["weight"].tolist() == [5.0] * 3 and state["dense"]["step"] == 7


def save(folder, step):
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.apart(), chunk_bytes=50)
    store.save(step, state_of(ranks, True), {"samples": 70})


def load(folder, step):
    ranks = Ranks.all()
    state = state_of(ranks, False)
    manifest = CheckpointStore(folder, ranks=ranks.apart()).load(step, state)
    return holds_the_truth(state) and manifest["samples"] == 70


def test_any_number_of_ranks_loads_what_any_other_saved(tmp_path):
    on_ranks(4, save, tmp_path, 4)
    store = CheckpointStore(tmp_path)
    assert read_manifest(store.path(4))["ranks"] == 4
    assert {name[:4] for name in read_manifest(store.path(4))["files"]} >= {"__0_", "__1_", "__2_", "__3_"}
    for world_size in (2, 3):
        assert all(on_ranks(world_size, load, tmp_path, 4))
    alone = {name: torch.zeros(ROWS, DIM) for name in ("rows", "columns", "last", "copied")}
    alone = {**alone, "state": torch.zeros(ROWS), "dense": {"weight": torch.zeros(3), "step": 0}}
    store.load(4, alone)
    assert all(torch.equal(alone[name], truth()) for name in ("rows", "columns", "last", "copied"))
    assert torch.equal(alone["state"], truth()[:, 0])
    store.save(5, alone, {"samples": 70})
    assert all(on_ranks(3, load, tmp_path, 5))


def many_things(folder):
    """Background saves, errors, damage: one start of the processes for all."""
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.apart())
    state = state_of(ranks, True)
    store.save(1, state, {"samples": 70}, background=True)
    for shard in shards_of(state):
        shard.tensor.zero_()
    state["dense"]["weight"].zero_()
    store.save(2, state_of(ranks, True), {"samples": 70}, background=True)
    store.close()
    seen = {"steps": store.steps(), "frozen": load(folder, 1) and load(folder, 2)}

    # A file of one rank grows over a limit: the other ranks hear of it, and nothing is left.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ranks.rank == ranks.world_size - 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        store.save(3, state_of(ranks, True), {}, background=True)
        store.wait()
    except StorageError as error:
        seen["full"] = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    seen["left"] = ranks.from_first(lambda: sorted(path.name for path in folder.iterdir()))

    ranks.from_first(lambda: (store.path(2) / "__1_0.distcp").write_bytes(b"damage"))
    try:
        store.load(2, state_of(ranks, False))
    except CheckpointError as error:
        seen["damage"] = str(error)
    store.close()
    return seen


def test_background_saves_hold_what_was_and_errors_of_one_rank_reach_all(tmp_path):
    for seen in on_ranks(2, many_things, tmp_path):
        assert seen["steps"] == [1, 2]
        assert seen["frozen"]
        assert "step-00000003" in seen["full"]
        assert seen["left"] == ["step-00000001", "step-00000002"]
        assert "__1_0.distcp is damaged or missing; delete" in seen["damage"]


def save_until_killed(folder, victim):
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.apart())
    store.save(1, state_of(ranks, True), {"samples": 70})
    if ranks.rank == victim:
        # Between its files and the commit: the moment at which a checkpoint looks whole and is not.
        import megalith.checkpoint.store as module

        module.files_of_rank = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    store.save(2, state_of(ranks, True), {"samples": 70})


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_before_the_commit_leaves_the_last_one(tmp_path, victim):
    with pytest.raises(AssertionError, match="rank"):
        on_ranks(2, save_until_killed, tmp_path, victim)
    assert CheckpointStore(tmp_path).steps() == [1]
    assert all(on_ranks(3, load, tmp_path, 1))
