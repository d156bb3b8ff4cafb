"""Checkpoints of many ranks: any number loads what any other saved; errors reach all; commits are atomic."""

import os
import resource
import signal

import pytest
import torch
from processes import on_ranks

from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import CheckpointError, StorageError
from megalith.embeddings.row_block import PartSpec
from megalith.embeddings.stores.dense_shard import DenseShard
from megalith.embeddings.table_state import TableState

ROWS, DIM = 40, 6


def truth():
    return torch.arange(float(ROWS * DIM)).view(ROWS, DIM)


PARTS = {"weight": PartSpec(torch.float32, "element"), "first": PartSpec(torch.float32, "row")}


def shard(whole, rows, columns, writes=True):
    weight = whole[rows[0] : rows[1], columns[0] : columns[1]].clone()
    parts = {"weight": weight, "first": whole[rows[0] : rows[1], 0].clone()}
    return DenseShard(rows[0], columns[0], parts, writes)


def state_of(ranks, filled):
    """A table cut by rows, one by columns with row states on every rank, one on the last, one copied."""
    rank, count = ranks.rank, ranks.world_size
    whole = truth() if filled else torch.full((ROWS, DIM), -1.0)
    rows = [ROWS * one // count for one in range(count + 1)]
    columns = [DIM * one // count for one in range(count + 1)]
    tables = {
        "rows": [shard(whole, rows[rank : rank + 2], (0, DIM))],
        "columns": [shard(whole, (0, ROWS), columns[rank : rank + 2])],
        "last": [shard(whole, (0, ROWS), (0, DIM))] if rank == count - 1 else [],
        "copied": [shard(whole, (0, ROWS), (0, DIM), writes=rank == 0)],
    }
    return {
        **{name: TableState(ROWS, DIM, PARTS, tuple(shards)) for name, shards in tables.items()},
        "dense": {"weight": torch.full((3,), 5.0 * filled), "step": 7 if filled else 0},
    }


def shards_of(state):
    return [one for value in state.values() if isinstance(value, TableState) for one in value.shards]


def holds_the_truth(state):
    for one in shards_of(state):
        expected = shard(truth(), one.rows, one.columns)
        if not all(torch.equal(part, expected.parts[name]) for name, part in one.parts.items()):
            return False
    return state["dense"]["weight"].tolist() == [5.0] * 3 and state["dense"]["step"] == 7


def save(folder, step):
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.with_own_group(), file_bytes=50)
    store.save(step, state_of(ranks, True), {"samples": 70})


def load(folder, step):
    ranks = Ranks.all()
    state = state_of(ranks, False)
    about = CheckpointStore(folder, ranks=ranks.with_own_group()).load(step, state)
    return holds_the_truth(state) and about["samples"] == 70


def test_any_number_of_ranks_loads_what_any_other_saved(tmp_path):
    on_ranks(4, save, tmp_path, 4)
    store = CheckpointStore(tmp_path)
    manifest = read_manifest(store.path(4))
    assert manifest.ranks == 4
    assert {name[:10] for name in manifest.files} >= {f"rows-0000{rank}" for rank in range(4)}
    for world_size in (2, 3):
        assert all(on_ranks(world_size, load, tmp_path, 4))
    assert load(tmp_path, 4)
    save(tmp_path, 5)
    assert all(on_ranks(3, load, tmp_path, 5))


def many_things(folder):
    """Background saves, errors, damage: one start of the processes for all."""
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.with_own_group())
    state = state_of(ranks, True)
    store.save(1, state, {"samples": 70}, background=True)
    for one in shards_of(state):
        one.parts["weight"].zero_()
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

    ranks.from_first(lambda: (store.path(2) / "rows-00001-000.safetensors").write_bytes(b"damage"))
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
        assert "rows-00001-000.safetensors is damaged or missing; go back to step 1" in seen["damage"]


def save_until_killed(folder, victim):
    ranks = Ranks.all()
    store = CheckpointStore(folder, ranks=ranks.with_own_group())
    store.save(1, state_of(ranks, True), {"samples": 70})
    if ranks.rank == victim:
        # Between its files and the commit: the moment at which a checkpoint looks whole and is not.
        import megalith.checkpoint.store as module

        write = module.write_rank
        module.write_rank = lambda *given: write(*given) and os.kill(os.getpid(), signal.SIGKILL)
    store.save(2, state_of(ranks, True), {"samples": 70})


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_before_the_commit_leaves_the_last_one(tmp_path, victim):
    with pytest.raises(AssertionError, match="rank"):
        on_ranks(2, save_until_killed, tmp_path, victim)
    assert CheckpointStore(tmp_path).steps() == [1]
    assert all(on_ranks(3, load, tmp_path, 1))
