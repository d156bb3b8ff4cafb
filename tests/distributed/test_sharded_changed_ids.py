"""Callers that overwrite their buffers: ids that were sent are looked up and updated as they were."""

import numpy as np
import torch
from processes import on_ranks
from sharded_cases import plan_of

import megalith as mg
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

TABLES = [
    mg.TableSpec(name="t0", rows=40, dim=4, features=("a",), init_scale=1.0),
    mg.TableSpec(name="t1", rows=30, dim=8, features=("b",), pooling="mean", init_scale=1.0),
    mg.TableSpec(name="t2", rows=20, dim=2, features=("c",), pooling="mean", init_scale=1.0),
]
BATCH = 6


def learn(when):
    """One step of which the caller overwrites its buffers `when`; weights that this rank holds."""
    rank = torch.distributed.get_rank()
    plan = plan_of(TABLES, ("row_wise", "table_wise", "data_parallel"), 2)
    sharded = ShardedEmbeddingCollection(TABLES, plan, mg.SGD(lr=0.5), seed=3)
    draw = np.random.default_rng(rank)
    values = draw.integers(0, 20, 3 * BATCH * 2).astype(np.int32)
    lengths = np.tile([1, 3], 3 * BATCH // 2)
    offsets = np.concatenate([[0], lengths.cumsum()])
    weights = draw.random(len(values), dtype=np.float32)
    arrays = values, offsets, weights

    def overwrite():
        for array in arrays:
            array[:] = 1

    sent = sharded.send(*map(torch.from_numpy, arrays))
    if when == "sent":
        overwrite()
    received = sharded.receive(sent)
    if when == "received":
        overwrite()
    pooled = sharded.finish_lookup(sharded.start_lookup(sharded.resolve(received, trains=True))).pooled
    if when == "read":
        overwrite()
    pooled.square().sum().backward()
    return [
        part.tolist()
        for state in sharded.table_states().values()
        for shard in state.shards
        for part in shard.parts.values()
    ]


def work():
    return {when: learn(when) for when in ("never", "sent", "received", "read")}


def test_the_rows_that_were_sent_are_updated():
    for learned in on_ranks(2, work):
        for when in ("sent", "received", "read"):
            assert learned[when] == learned["never"], when
