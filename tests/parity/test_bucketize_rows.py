"""Sharing out ids of cut rows: native against the plain twin."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.ids.partitions import id_partitions
from megalith.ops.sharding.bucketize import CutFeature, RowBuckets, bucketize_rows, bucketize_rows_twin


@st.composite
def batches(draw):
    num_features, batch = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    rows = [draw(st.integers(1, 60)) for _ in range(num_features)]
    lengths = [[draw(st.integers(0, 4)) for _ in range(batch)] for _ in range(num_features)]
    values = [
        draw(st.integers(0, rows[feature] - 1))
        for feature in range(num_features)
        for _ in range(sum(lengths[feature]))
    ]
    counts = torch.tensor([length for some in lengths for length in some], dtype=torch.int64)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    weights = torch.randn(len(values)) if draw(st.booleans()) else None
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return rows, torch.tensor(values, dtype=dtype), offsets, weights, batch


@st.composite
def cut_batches(draw):
    """Partitions of any features, one twice perhaps, by row or by hash; empty parts, parts of nobody, streams
    in any order."""
    rows, values, offsets, weights, batch = draw(batches())
    partitions, num_parts = [], 0
    for _ in range(draw(st.integers(0, 5))):
        feature = draw(st.integers(0, len(rows) - 1))
        by_hash = draw(st.booleans())
        last = 64 if by_hash else rows[feature]
        inner = sorted(draw(st.lists(st.integers(0, last), max_size=40)))
        partitions.append((feature, [0, *inner, last], by_hash))
        num_parts += len(inner) + 1
    owners = draw(st.permutations(range(num_parts)))
    taken = iter([owner if owner % 4 else -1 for owner in owners])
    parts = [
        CutFeature(feature, bounds, [next(taken) for _ in bounds[1:]], by_hash)
        for feature, bounds, by_hash in partitions
    ]
    return values, offsets, weights, batch, RowBuckets.of(parts, num_parts)


def same(found, expected):
    assert found.held == expected.held
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            assert one == other


@given(cut_batches())
def test_ids_are_shared_out_as_the_twin_does(given):
    same(bucketize_rows(*given), bucketize_rows_twin(*given))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.lists(st.integers(0, 64), max_size=70))
def test_any_64_bits_go_as_they_are_to_the_owner_of_their_part(ids, inner):
    bounds = [0, *sorted(inner), 64]
    values, offsets = torch.tensor(ids, dtype=torch.int64), torch.tensor([0, len(ids)])
    cut = RowBuckets.of([CutFeature(0, bounds, range(len(bounds) - 1), by_hash=True)], len(bounds) - 1)
    found = bucketize_rows(values, offsets, None, 1, cut)
    same(found, bucketize_rows_twin(values, offsets, None, 1, cut))
    assert sum(found.held) == len(ids)
    for stream, taken in enumerate(found.values.split(found.held)):
        parts = id_partitions(taken)
        assert bool(((parts >= bounds[stream]) & (parts < bounds[stream + 1])).all())
        kept = (id_partitions(values) >= bounds[stream]) & (id_partitions(values) < bounds[stream + 1])
        # Of two buckets that begin together the last one takes all.
        assert not len(taken) or torch.equal(taken, values[kept])


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 40), st.integers(0, 1000))
def test_any_number_of_threads_shares_out_alike(num_parts, seed):
    generator = torch.Generator().manual_seed(seed)
    batch, features, rows = 300, 5, 10_000
    counts = torch.randint(0, 9, (features * batch,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    values = torch.randint(0, rows, (int(offsets[-1]),), generator=generator)
    edges = torch.linspace(0, rows, num_parts + 1).long().tolist()
    partitions = [
        CutFeature(feature, edges, range(feature * num_parts, (feature + 1) * num_parts))
        for feature in range(features)
    ]
    cuts = RowBuckets.of(partitions, features * num_parts)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            same(
                bucketize_rows(values, offsets, None, batch, cuts),
                bucketize_rows_twin(values, offsets, None, batch, cuts),
            )
    finally:
        torch.set_num_threads(before)
