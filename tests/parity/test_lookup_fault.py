"""`lookup_fault` against its plain-torch twin, for any shapes, types and number of threads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.ops.embedding.index_check import NONE, OFFSETS, lookup_fault, lookup_fault_twin


@st.composite
def lookups(draw):
    num_features, batch = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    lengths = [draw(st.integers(0, 3)) for _ in range(num_features * batch)]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    if len(offsets) > 1 and draw(st.integers(0, 4)) == 0:
        offsets[draw(st.integers(0, len(offsets) - 1))] += draw(st.sampled_from([-2, -1, 1, 2, 2**40]))
    values = [draw(st.integers(-1, 5)) for _ in range(sum(lengths))]
    rows = [draw(st.sampled_from([-1, 1, 2, 3, 4, 5])) for _ in range(num_features)]
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return torch.tensor(values, dtype=dtype), offsets, torch.tensor(rows)


@given(lookups())
def test_matches_the_twin(lookup):
    assert lookup_fault(*lookup) == lookup_fault_twin(*lookup)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_first_position_wins_for_any_number_of_threads(threads):
    values = torch.zeros(400_000, dtype=torch.int64)
    values[[70_000, 250_000, 399_999]] = 7
    offsets = torch.tensor([0, 100_000, 400_000])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert lookup_fault(values, offsets, torch.tensor([7, 8])) == 70_000
        assert lookup_fault(values, offsets, torch.tensor([8, 7])) == 250_000
        assert lookup_fault(values, offsets, torch.tensor([8, 8])) == NONE
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_one_offset_that_falls_is_found_among_many(threads):
    offsets = torch.arange(300_001)
    offsets[200_000] = 199_998
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert lookup_fault(torch.zeros(300_000, dtype=torch.int32), offsets, torch.tensor([1])) == OFFSETS
    finally:
        torch.set_num_threads(before)


def test_values_need_not_be_contiguous():
    values = torch.tensor([[0, 9], [1, 9]])[:, 0]
    assert lookup_fault(values, torch.tensor([0, 2]), torch.tensor([2])) == NONE


def test_indices_of_another_type_are_refused():
    with pytest.raises(TypeError, match="int32 or int64"):
        lookup_fault(torch.tensor([0.5]), torch.tensor([0, 1]), torch.tensor([2]))


def test_offsets_of_another_type_are_refused():
    with pytest.raises(TypeError, match="offsets must be int64"):
        lookup_fault(torch.tensor([0]), torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2]))
