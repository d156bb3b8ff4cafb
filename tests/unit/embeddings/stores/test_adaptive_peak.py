"""The most that adaptive tables take before they are as small as asked for, from settings alone."""

import pytest
import torch

import megalith as mg
from megalith.embeddings.optimizers import Adam, RowWiseAdaGrad
from megalith.embeddings.stores.adaptive.peak import peak_bytes
from megalith.embeddings.stores.adaptive.settings import AdaptivePolicy

BATCH = 500


@pytest.mark.parametrize("optimizer", [RowWiseAdaGrad(lr=0.1), Adam(lr=0.1)])
@pytest.mark.parametrize("begin_ratio", [1.0, 2.5])
def test_tables_stay_below_their_peak_and_come_near_it(optimizer, begin_ratio):
    """Ids that never come again, the worst that data can be."""
    tables = [
        mg.TableSpec(name=name, rows=rows, dim=32, features=(name,), store={"kind": "adaptive", "chunk": 8})
        for name, rows in (("a", 20_000), ("b", 6_000))
    ]
    policy = AdaptivePolicy(ratio=6, interval=4, warm_up=12, end_step=60, begin_ratio=begin_ratio, chunk=8)
    peak = peak_bytes(tables, optimizer, policy, {"a": BATCH, "b": BATCH})
    emb = mg.EmbeddingCollection(tables, optimizer, seed=1, adaptive=policy)
    generator, most = torch.Generator().manual_seed(2), 0
    orders = [torch.randperm(table.rows, generator=generator) for table in tables]
    for step in range(60):
        ids = torch.cat(
            [order[torch.arange(BATCH * step, BATCH * (step + 1)) % len(order)] for order in orders]
        )
        out = emb(ids, torch.arange(len(ids) + 1))
        out.backward(torch.rand(out.shape, generator=generator))
        taken = emb.bytes()
        most = max(most, taken.memory - taken.free)
    assert 0.6 * peak < most < 1.06 * peak


def test_the_peak_is_where_rows_that_came_meet_the_budget():
    table = mg.TableSpec(name="t", rows=1000, dim=16, features=("t",), store="adaptive")
    policy = AdaptivePolicy(ratio=10, warm_up=10, end_step=100)

    def peak(lookups, **changed):
        return peak_bytes([table], RowWiseAdaGrad(), policy.model_copy(update=changed), {"t": lookups})

    dense = 1000 * 68
    # All rows come at once, and have 11 bytes of index and 4 of utilities each.
    assert dense < peak(None) == peak(1000) < 1.3 * dense
    assert peak(0) < dense / 10
    assert peak(1) < peak(10) < peak(100) <= peak(1000)
    assert peak(1000, begin_ratio=4.0) == dense // 4
    assert peak(1000, begin_ratio=1000.0) == dense // 10
