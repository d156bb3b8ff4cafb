"""Settings of dynamic tables: what is refused, how scores decay, which rows partitions have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, DataError, NativeError
from megalith.ops.ids.id_map import IdMap
from megalith.ops.ids.id_map_twin import mix_twin
from megalith.ops.ids.partitions import (
    id_partitions,
    partitions_of_rank,
    rows_of_partitions,
    rows_of_whole_table,
)
from megalith.ops.ids.policies import IdAdmission, IdEviction, IdExpiry, IdTableSpec

IDS = torch.tensor([5, -7, 5], dtype=torch.int64)
LOOKUPS = torch.tensor([[0, 0, 3]])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: IdTableSpec(63), "A dynamic table of 63 rows is not possible; use 64"),
        (lambda: IdTableSpec(2**31), "is not possible"),
        (lambda: IdAdmission("often"), "admission is 'often'; use always, count or probability."),
        (lambda: IdAdmission("count", count=0), "admission.count is 0"),
        (lambda: IdAdmission("probability", probability=1.5), "admission.probability is 1.5"),
        (lambda: IdAdmission("count", counter_bytes=64), "admission.counter_bytes is 64; use 4096 or more."),
        (lambda: IdEviction("fifo"), "eviction is 'fifo'; use lru, lfu or score."),
        (lambda: IdEviction("score", half_life=0), "eviction.half_life is 0"),
        (lambda: IdEviction("lfu", halve_every=-1), "eviction.halve_every is -1"),
        (lambda: IdExpiry(seconds=0), "expiry.seconds is 0"),
        (lambda: IdMap([IdTableSpec(64)], partitions=(3, 3)), "Partitions 3 to 3 are not possible"),
        (lambda: IdMap([IdTableSpec(64)], lag=-1), "lag -1"),
    ],
)
def test_settings_that_are_not_possible_are_refused(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_batches_that_are_not_possible_are_refused():
    ids = IdMap([IdTableSpec(100)], partitions=(0, 1))
    assert id_partitions(IDS).tolist() != [0, 0, 0]
    with pytest.raises(NativeError, match="which another process has"):
        ids.resolve(LOOKUPS, IDS, 1, trains=True)
    whole = IdMap([IdTableSpec(100)])
    whole.resolve(LOOKUPS, IDS, 5, trains=True)
    with pytest.raises(NativeError, match="batch 4 comes after batch 5"):
        whole.resolve(LOOKUPS, IDS, 4, trains=True)
    with pytest.raises(ValueError, match="a lookup names a table or values that there are not"):
        whole.resolve(torch.tensor([[1, 0, 3]]), IDS, 6, trains=True)
    whole.close()
    with pytest.raises(ValueError, match="closed"):
        whole.resolve(LOOKUPS, IDS, 6, trains=True)


def test_event_times_that_are_missing_or_out_of_range_are_refused():
    ids = IdMap([IdTableSpec(100, expiry=IdExpiry(seconds=10))])
    with pytest.raises(DataError, match="give the time of each value"):
        ids.resolve(LOOKUPS, IDS, 1, trains=True)
    with pytest.raises(DataError, match="Event times are seconds since 1970"):
        ids.resolve(LOOKUPS, IDS, 1, trains=True, times=torch.tensor([1, 2, -1]))
    # An evaluation needs none.
    assert ids.resolve(LOOKUPS, IDS, 1, trains=False).rows.tolist() == [-1, -1, -1]


def test_values_outside_of_all_lookups_have_no_row():
    ids = IdMap([IdTableSpec(100)])
    rows = ids.resolve(torch.tensor([[0, 1, 2]]), IDS, 1, trains=True).rows.tolist()
    assert rows[0] == rows[2] == -1
    assert rows[1] >= 0
    assert ids.statistics(0).lookups == 1


@given(batch=st.integers(0, 100_000), later=st.integers(0, 500), half_life=st.integers(1, 100))
def test_half_of_a_score_is_left_after_its_half_life(batch, later, half_life):
    eviction = IdEviction("score", half_life=half_life)
    now, then = eviction.score_clock(batch), eviction.score_clock(batch + later)
    grown = then.weight / now.weight * 2.0 ** (64 * (then.segment - now.segment))
    assert grown == pytest.approx(2 ** (later / half_life), rel=1e-9)
    assert 1 <= now.weight < 2.0**64


def test_scores_go_on_under_another_policy():
    """Uses count as much as they did, whatever their decay makes of them later."""
    before, after = IdEviction("score", half_life=10), IdEviction("lfu", halve_every=50)
    first = IdMap([IdTableSpec(100, eviction=before)])
    for batch in range(1, 40):
        first.resolve(LOOKUPS, IDS, batch, trains=True)
    (block,) = first.scan(0)
    second = IdMap([IdTableSpec(100, eviction=after)])
    second.resume(first.batch)
    second.load(0, block._replace(scores=block.scores * after.score_factor(before, first.batch)))
    (loaded,) = second.scan(0)
    uses = sum(0.5 ** ((39 - batch) / 10) for batch in range(1, 40))
    expected = [2 * uses if id_ == 5 else uses for id_ in loaded.ids.tolist()]
    found = loaded.scores / after.score_clock(first.batch).weight
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


@given(bound=st.integers(64, 5000), ranks=st.integers(1, 64))
def test_ranks_share_all_rows(bound, ranks):
    spec, seen = IdTableSpec(bound), []
    assert sum(spec.rows_of(partition) for partition in range(64)) == bound
    for rank in range(ranks):
        first, last = partitions_of_rank(rank, ranks)
        assert all(partition * ranks // 64 == rank for partition in range(first, last))
        rows = rows_of_partitions(bound, (first, last))
        assert rows == sum(spec.rows_of(partition) for partition in range(first, last))
        seen += rows_of_whole_table(torch.arange(rows), (first, last)).tolist()
    assert sorted(seen) == list(range(bound))


@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_partitions_are_the_highest_bits_of_the_hash(ids):
    found = id_partitions(torch.tensor(ids, dtype=torch.int64)).tolist()
    assert found == [mix_twin(id_) >> 58 for id_ in ids]
