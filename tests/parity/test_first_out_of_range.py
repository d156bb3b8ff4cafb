"""`first_out_of_range` against its plain-torch twin, for any shapes, types and number of threads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.ops.indices import first_out_of_range, first_out_of_range_twin


@st.composite
def lookups(draw):
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    rows = [draw(st.integers(1, 5)) for _ in sizes]
    values = [draw(st.integers(-1, 5)) for _ in range(sum(sizes))]
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    return torch.tensor(values, dtype=dtype), torch.tensor(sizes).cumsum(0), torch.tensor(rows)


@given(lookups())
def test_matches_the_twin(lookup):
    assert first_out_of_range(*lookup) == first_out_of_range_twin(*lookup)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_first_position_wins_for_any_number_of_threads(threads):
    values = torch.zeros(400_000, dtype=torch.int64)
    values[[70_000, 250_000, 399_999]] = 7
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = first_out_of_range(values, torch.tensor([100_000, 400_000]), torch.tensor([7, 8]))
        assert int(found) == 70_000
        found = first_out_of_range(values, torch.tensor([100_000, 400_000]), torch.tensor([8, 7]))
        assert int(found) == 250_000
    finally:
        torch.set_num_threads(before)


def test_values_need_not_be_contiguous():
    values = torch.tensor([[0, 9], [1, 9]])[:, 0]
    assert int(first_out_of_range(values, torch.tensor([2]), torch.tensor([2]))) == -1


def test_indices_of_another_type_are_refused():
    with pytest.raises(TypeError, match="int32 or int64"):
        first_out_of_range(torch.tensor([0.5]), torch.tensor([1]), torch.tensor([2]))


def test_torch_knows_the_operator():
    arguments = (torch.tensor([1, 2, 3]), torch.tensor([2, 3]), torch.tensor([4, 2]))
    torch.library.opcheck(torch.ops.megalith.first_out_of_range.default, arguments)
