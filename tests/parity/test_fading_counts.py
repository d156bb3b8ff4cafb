"""Counts of uses fade: where other ids become popular, what was popular before leaves."""

import numpy as np
import pytest
import torch
from look_ahead_twin import LookAheadTwin

from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows


def batches_of_two_halves(rows, skew, batch, steps):
    """Ids fall as rank ** -skew; in the second half all ranks have other ids."""
    generator = np.random.default_rng(3)
    shares = np.cumsum(np.arange(1.0, rows + 1) ** -skew)
    ids = generator.permutation(2 * rows)
    ranks = np.searchsorted(shares, generator.random((steps, batch)) * shares[-1])
    ranks[steps // 2 :] += rows
    return torch.from_numpy(ids[ranks])


def hits_of_halves(folder, batches, policy, slots, overflow=None):
    """Hits of each half in a pool of so many slots, and rows read altogether."""
    folder.mkdir()
    table = PooledTable(int(batches.max()) + 1, StartValues(1, "t", 4, 1.0))
    disk = DiskSettings(folder, segment_bytes=40_000)
    pool = TieredRows([table], [torch.zeros(slots + 1, 4)], disk, policy, overflow)
    lookups, half = torch.tensor([[0, 0, batches.shape[1]]]), len(batches) // 2
    hits = [0]
    for number, ids in enumerate(batches, start=1):
        pool.resolve(lookups, ids, number, trains=True)
        pool.release(number)
        if number in (half, len(batches)):
            hits.append(pool.statistics().hits)
    reads = pool.statistics().read_rows
    pool.close()
    return hits[1], hits[2] - hits[1], reads


def test_counts_fade_as_the_rule_in_python_says(tmp_path):
    batches = batches_of_two_halves(40, 0.9, 6, 1200)
    twin = LookAheadTwin()
    for number, ids in enumerate(batches.tolist(), start=1):
        twin.resolve(ids, number, number - 1)
    before, after, reads = hits_of_halves(tmp_path / "rows", batches, "lookahead", LookAheadTwin.SLOTS)
    assert (before + after, reads) == (twin.hits, twin.reads)
    assert twin.ended > 40


@pytest.mark.parametrize("policy", ["lfu", "lookahead"])
def test_ids_that_become_popular_are_hit_more_often_than_under_lru(policy, tmp_path):
    batches = batches_of_two_halves(20_000, 0.9, 256, 3000)
    before, after, _ = hits_of_halves(tmp_path / policy, batches, policy, 2112, 64)
    lru_before, lru_after, _ = hits_of_halves(tmp_path / "lru", batches, "lru", 2112, 64)
    # As long as the same ids are popular, counts tell more than the last use.
    assert before > 1.1 * lru_before
    assert after > 1.05 * lru_after
