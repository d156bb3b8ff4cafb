"""`checked_copy` against its plain-torch twin: the same faults, and copies that nobody else can change."""

import pytest
import torch
from hypothesis import given
from test_lookup_fault import lookups

from megalith.ops.embedding.index_check import NONE, checked_copy, checked_copy_twin


@pytest.mark.parametrize("wide", [False, True])
@given(lookup=lookups())
def test_matches_the_twin(lookup, wide):
    found, expected = (one(*lookup, wide=wide) for one in (checked_copy, checked_copy_twin))
    assert found.fault == expected.fault
    if found.fault == NONE:
        assert torch.equal(found.values, expected.values)
        assert torch.equal(found.offsets, expected.offsets)
        assert found.values.dtype == expected.values.dtype


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_many_ids_are_copied_by_any_number_of_threads(threads, dtype):
    values = torch.randint(0, 7, (400_000,), generator=torch.Generator().manual_seed(0)).to(dtype)
    offsets = torch.arange(0, 400_001, 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        copy = checked_copy(values, offsets, torch.tensor([7, 7]), wide=False)
    finally:
        torch.set_num_threads(before)
    assert copy.fault == NONE
    assert torch.equal(copy.values, values.int())
    assert torch.equal(copy.offsets, offsets)


@pytest.mark.parametrize("bad", [2**32 + 1, 2**31, -(2**32), -(2**63), 2**63 - 1])
def test_an_id_that_four_bytes_would_make_good_is_found(bad):
    values = torch.tensor([0, bad])
    assert checked_copy(values, torch.tensor([0, 2]), torch.tensor([5]), wide=False).fault == 1


def test_the_copy_is_not_the_callers_memory():
    values, offsets = torch.tensor([1, 2], dtype=torch.int32), torch.tensor([0, 2])
    copy = checked_copy(values, offsets, torch.tensor([5]), wide=False)
    values.fill_(4)
    offsets.fill_(0)
    assert copy.values.tolist() == [1, 2]
    assert copy.offsets.tolist() == [0, 2]
