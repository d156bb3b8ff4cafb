"""Encoded rows against the plain-torch twin, bit by bit, on every processor variant."""

import pytest
import torch
from frozen_worlds import DIMS, INTEGERS, random_weights
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import DataError
from megalith.ops.frozen.encode import encode_rows
from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import RowFormat
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


@given(st.data(), st.sampled_from(INTEGERS), st.integers(1, 9), st.sampled_from(DIMS))
@settings(deadline=None, max_examples=200)
def test_matches_the_twin(data, form, rows, dim):
    wild = form.scale == "float32" and data.draw(st.booleans())
    weights = random_weights(data.draw, rows, dim, wild=wild)
    expected = encode_rows_twin(weights, form)
    for level in SIMD_LEVELS:
        use_simd(level)
        assert torch.equal(encode_rows(weights, form), expected), level


@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
@settings(deadline=None, max_examples=200)
def test_any_weights_that_float16_holds_match(weights):
    given_weights = torch.tensor([weights])
    for form in INTEGERS:
        expected = None
        try:
            expected = encode_rows_twin(given_weights, form)
        except DataError:
            with pytest.raises(DataError):
                encode_rows(given_weights, form)
        if expected is not None:
            assert torch.equal(encode_rows(given_weights, form), expected)


@pytest.mark.parametrize("form", INTEGERS)
def test_many_rows_match_for_any_number_of_threads(form):
    weights = torch.randn(3000, 37, generator=torch.Generator().manual_seed(0))
    expected, before = encode_rows_twin(weights, form), torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(encode_rows(weights, form), expected)
    finally:
        torch.set_num_threads(before)


def test_weights_are_refused_as_the_twin_refuses_them():
    weights = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0))
    weights[2500, 2] = float("nan")
    with pytest.raises(DataError, match="Row 12500 of items holds nan in column 2"):
        encode_rows(weights, RowFormat("int8", "float16"), "items", first_row=10_000)
    weights[2500] = torch.tensor([1e6, 0, 0, 0, -1e6])
    with pytest.raises(DataError, match="too large for float16"):
        encode_rows(weights, RowFormat("int4", "float16"), "items")
    weights[2500] = torch.tensor([3e38, 0, 0, 0, -3e38])
    with pytest.raises(DataError, match="Row 2500 of items spans more than float32"):
        encode_rows(weights, RowFormat("int4", "float32"), "items")
