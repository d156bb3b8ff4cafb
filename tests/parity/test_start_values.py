"""Start values of rows: the native core against plain torch, bit by bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.ops import native
from megalith.ops.stores.start_values import StartValues, start_values_, start_values_twin

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@given(
    seed=st.integers(0, 2**63 - 1),
    name=st.text(max_size=8),
    dim=st.integers(1, 70),
    scale=st.floats(0, 4, width=32),
    dtype=st.sampled_from(DTYPES),
    first_row=st.integers(0, 2**40),
    first_column=st.integers(0, 9),
    first=st.integers(0, 2**33),
    rows=st.integers(0, 40),
)
def test_native_rows_are_those_of_the_twin(
    seed, name, dim, scale, dtype, first_row, first_column, first, rows
):
    start = StartValues(seed, name, dim, scale, dtype, first_row, first_column)
    filled = start_values_(torch.empty(rows, dim, dtype=dtype), start, first)
    twin = start_values_twin(start, torch.arange(first, first + rows))
    assert torch.equal(filled.view(torch.uint8), twin.view(torch.uint8))


@given(
    rows=st.tuples(st.integers(0, 20), st.integers(1, 20)),
    columns=st.tuples(st.integers(0, 20), st.integers(1, 20)),
)
def test_a_rectangle_begins_as_its_part_of_the_table(rows, columns):
    (first_row, num_rows), (first_column, dim) = rows, columns
    whole = start_values_(torch.empty(40, 40), StartValues(5, "t", 40, 0.5))
    part = StartValues(5, "t", dim, 0.5, first_row=first_row, first_column=first_column)
    expected = whole[first_row : first_row + num_rows, first_column : first_column + dim]
    assert torch.equal(start_values_(torch.empty(num_rows, dim), part), expected)


def test_any_number_of_threads_gives_the_same():
    start, filled = StartValues(1, "t", 33, 0.1), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            native.library().mg_set_num_threads(threads)
            filled.append(start_values_(torch.empty(5000, 33), start))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(rows, filled[0]) for rows in filled)


def test_values_spread_evenly_and_differ_by_table_seed_row_and_column():
    rows = start_values_(torch.empty(20_000, 8), StartValues(1, "t", 8, 1.0)).double()
    assert rows.min() >= -1
    assert rows.max() < 1
    counts = torch.histc(rows, bins=16, min=-1, max=1)
    # 10,000 expected in each sixteenth: five standard deviations are 484.
    assert (counts - 10_000).abs().max() < 500
    correlations = torch.corrcoef(rows.T) - torch.eye(8)
    assert correlations.abs().max() < 0.04
    others = [StartValues(2, "t", 8, 1.0), StartValues(1, "u", 8, 1.0)]
    for other in others:
        values = start_values_(torch.empty(20_000, 8), other).double()
        assert (values == rows).float().mean() < 0.001
        assert abs(float((values * rows).mean())) < 0.02


def test_the_values_are_those_that_runs_began_with():
    """These never change: a resumed run computes its untouched rows again."""
    values = start_values_(torch.empty(2, 3), StartValues(0, "items", 3, 0.25), first=7)
    assert values.view(torch.int32).tolist() == EXPECTED


EXPECTED = [[-1109630348, 1046564948, 1045723274], [-1107537348, -1116161664, -1113795172]]


def test_memory_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        start_values_(torch.empty(3, 5), StartValues(0, "t", 4, 1.0))
