"""What leaves a small cache under look-ahead: a real pool against the rule in plain Python."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from look_ahead_twin import LookAheadTwin, belady_hits

from megalith.ops.stores.start_values import StartValues
from megalith.ops.stores.tiered_rows import DiskSettings, PooledTable, TieredRows

ids = st.integers(0, 40)
streams = st.lists(st.lists(ids, max_size=6).map(tuple), min_size=1, max_size=150)
short_streams = st.lists(st.lists(ids, max_size=6).map(tuple), min_size=1, max_size=33)


def replay(batches, windows, lag=0, twins=()):
    """Statistics of a pool of 17 slots; `windows[n]` batches are known beyond batch n, `lag` unreleased."""
    with tempfile.TemporaryDirectory() as folder:
        memory = [torch.zeros(LookAheadTwin.SLOTS + 1, 4)]
        table = PooledTable(1000, StartValues(1, "t", 4, 1.0))
        pool = TieredRows([table], memory, DiskSettings(Path(folder), segment_bytes=40_000), "lookahead")
        announced = 0
        for number, (rows, window) in enumerate(zip(batches, windows, strict=True), start=1):
            while announced < min(number + window, len(batches)):
                announced += 1
                coming = batches[announced - 1]
                pool.expect(torch.tensor([[0, 0, len(coming)]]), torch.tensor(coming).long(), announced)
                for twin in twins:
                    twin.expect(coming, announced)
            pool.resolve(torch.tensor([[0, 0, len(rows)]]), torch.tensor(rows).long(), number, trains=True)
            for twin in twins:
                twin.resolve(rows, number, number - 1 - lag)
            pool.release(number - lag)
        statistics = pool.statistics()
        pool.close()
    return statistics


@given(batches=streams, window=st.integers(0, 128), later=st.integers(0, 128), lag=st.integers(0, 1))
def test_hits_and_reads_are_those_of_the_rule_in_python(batches, window, later, lag):
    """Also where the window grows in the middle of a run, and beyond the batches that are told apart."""
    half = len(batches) // 2
    windows = [window] * half + [later] * (len(batches) - half)
    twin = LookAheadTwin()
    found = replay(batches, windows, lag, [twin])
    assert (found.hits, found.read_rows) == (twin.hits, twin.reads)


@given(batches=short_streams)
def test_a_window_over_all_batches_hits_as_often_as_can_be(batches):
    found = replay(batches, [32] * len(batches))
    assert found.hits == belady_hits(batches, 16)


@pytest.mark.parametrize(("window", "of_belady"), [(8, 0.95), (32, 0.99), (100, 0.9)])
def test_the_next_use_of_a_row_counts_not_its_last(window, of_belady):
    """Most rows of the window come more than once, and it has more of them than the cache.

    A group of the longest window has more rows than the cache: of these it cannot tell which come first.
    """
    generator = torch.Generator().manual_seed(5)
    drawn = 60 * torch.rand(600, 6, generator=generator) ** 1.5
    batches = [tuple(rows) for rows in drawn.long().tolist()]
    last_use = LookAheadTwin(nearest=max)
    next_use = LookAheadTwin()
    found = replay(batches, [window] * len(batches), 0, [last_use, next_use])
    assert (found.hits, found.read_rows) == (next_use.hits, next_use.reads)
    assert found.hits > 1.05 * last_use.hits
    assert found.hits > of_belady * belady_hits(batches, 16)
