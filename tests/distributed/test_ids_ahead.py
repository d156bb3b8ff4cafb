"""Ids of coming batches on their way while others are looked up."""

import pytest
import torch
import torch.distributed as dist
from processes import on_ranks
from sharded_cases import drawn_step, plan_of

import megalith as mg
from megalith.core.errors import ConfigError
from megalith.sharding.runtime.collection import ShardedEmbeddingCollection

TABLES = [
    mg.TableSpec(name="t0", rows=40, dim=4, features=("a",), init_scale=1.0),
    mg.TableSpec(name="t1", rows=30, dim=8, features=("b",), init_scale=1.0),
]


def look_up_ahead():
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    # Messages of growing and shrinking sizes: those that no longer fit what was agreed on follow behind.
    sizes = (3, 300, 5, 70, 2, 500, 500, 1)
    steps = [
        drawn_step(TABLES, [size, size + rank_more], generator) for size in sizes for rank_more in (0, 2)
    ]
    parts = [step.of_rank(rank)[:2] for step in steps]
    plan = plan_of(TABLES, ("row_wise", "table_wise"), 2)
    with torch.no_grad():
        whole = mg.EmbeddingCollection(TABLES, seed=3, independent=True)
        sharded = ShardedEmbeddingCollection(TABLES, plan, seed=3)
        ahead = [sharded.send(*parts[0])]
        for number, step in enumerate(steps):
            if number + 1 < len(steps):
                ahead.append(sharded.send(*parts[number + 1]))
                with pytest.raises(ConfigError, match="receive the first"):
                    sharded.send(*parts[0])
            pending = sharded.start_lookup(sharded.resolve(sharded.receive(ahead.pop(0)), trains=True))
            pooled = sharded.finish_lookup(pending).pooled
            first = sum(step.batches[:rank])
            expected = whole(step.values, step.offsets)[first : first + step.batches[rank]]
            torch.testing.assert_close(pooled, expected, rtol=1e-5, atol=1e-5)
        ids, offsets = parts[0]
        for other in (None, torch.ones(len(ids)).requires_grad_()):
            sent = sharded.send(ids, offsets, other if rank else torch.ones(len(ids)))
            with pytest.raises(ConfigError, match="pass them alike on all ranks"):
                sharded.receive(sent)


@pytest.mark.parametrize("shared", ["0", "1"])
def test_ids_of_two_batches_travel_at_a_time(shared, monkeypatch):
    monkeypatch.setenv("MEGALITH_SHARED_MEMORY", shared)
    on_ranks(2, look_up_ahead)
