"""Chunks of large tensors: written apart, put together again whatever their size."""

import pickle

import pytest
import torch

from megalith.checkpoint.transfer import load_into, save_into
from megalith.sharding.runtime.ranks import Ranks
from megalith.sharding.runtime.sharded_table import ShardedTable, TableShard


def truth():
    return {
        "table": torch.arange(70.0).view(14, 5),
        "half": torch.arange(14, dtype=torch.float16),
        "empty": torch.zeros(0, 5),
        "scalar": torch.tensor(3.0),
        "nested": {"step": 7},
    }


def blank():
    return {name: torch.zeros_like(one) for name, one in truth().items() if name != "nested"} | {
        "nested": {"step": 0}
    }


@pytest.mark.parametrize("chunk_bytes", [1, 8, 20, 60, 1 << 20])
def test_a_state_reads_back_whatever_the_size_of_chunks(tmp_path, chunk_bytes):
    save_into(truth(), tmp_path, tmp_path, Ranks(), chunk_bytes)
    state = blank()
    load_into(state, tmp_path, Ranks())
    assert state["nested"]["step"] == 7
    assert all(torch.equal(state[name], one) for name, one in truth().items() if name != "nested")


def test_parts_are_cut_and_read_in_chunks(tmp_path):
    whole = truth()["table"]
    shards = [TableShard(whole[:9, 2:].clone(), (0, 2)), TableShard(whole[9:].clone(), (9, 0))]
    shards.append(TableShard(whole[:9, :2].clone(), (0, 0)))
    save_into({"table": ShardedTable((14, 5), torch.float32, shards)}, tmp_path, tmp_path, Ranks(), 24)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    # 5 pieces of two rows of three columns, 5 of a row of five, 3 of three rows of two.
    assert len(metadata.state_dict_metadata["table"].chunks) == 5 + 5 + 3
    part = TableShard(torch.zeros(6, 3), (5, 1))
    state = {"table": ShardedTable((14, 5), torch.float32, [part])}
    load_into(state, tmp_path, Ranks())
    assert torch.equal(part.tensor, whole[5:11, 1:4])
