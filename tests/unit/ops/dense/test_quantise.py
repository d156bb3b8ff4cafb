"""Codes of weights and activations: what they mean, and what extreme values become."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.ops.dense.quantise import (
    LARGEST_CODE,
    MAX_INPUTS,
    QuantisedWeight,
    quantise_activations,
    quantise_weight,
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from(["u8s7", "u8s8"]),
)
@settings(deadline=None)
def test_a_weight_is_within_half_a_step(rows, products):
    weight = torch.tensor(rows)
    found = quantise_weight(weight, products)
    assert int(found.codes.int().abs().max()) <= LARGEST_CODE[products]
    wrong = (found.codes.double() * found.scales.double()[:, None] - weight.double()).abs()
    # A scale among the subnormal numbers is itself rounded by up to half of the smallest one.
    assert bool((wrong <= found.scales.double()[:, None] * 0.5001 + 2.0**-149 * 64).all())


@given(st.lists(FLOATS, min_size=1, max_size=40))
@settings(deadline=None)
def test_a_sample_is_within_a_step(values):
    x = torch.tensor([values])
    codes, scales, zeros = quantise_activations(x)
    assert 0 <= int(zeros) <= 255
    read = (codes.double() - zeros.double()[:, None]) * scales.double()[:, None]
    assert bool(((read - x.double()).abs() <= scales.double() * 1.01 + 3.1e-36).all())


def test_zero_is_exact():
    x = torch.tensor([[0.0, 3.0, -7.0], [0.0, 5.0, 9.0], [0.0, -2.0, -1.0]])
    codes, _, zeros = quantise_activations(x)
    assert codes[:, 0].tolist() == zeros.tolist()


def test_a_sample_does_not_depend_on_its_batch():
    x = torch.randn(50, 33) * torch.logspace(-20, 20, 50)[:, None]
    together = quantise_activations(x)
    for number in range(50):
        alone = quantise_activations(x[number : number + 1])
        assert all(
            torch.equal(one[number : number + 1], other) for one, other in zip(together, alone, strict=True)
        )


def test_samples_of_zeros_and_below_all_scales_read_as_zeros():
    codes, scales, zeros = quantise_activations(torch.tensor([[0.0, 0.0], [1e-40, -1e-40], [3e-37, 0.0]]))
    assert codes.sum() == 0
    assert scales.tolist() == [0.0] * 3
    assert zeros.tolist() == [0] * 3


def test_the_widest_range_does_not_overflow():
    largest = torch.finfo(torch.float32).max
    codes, scales, zeros = quantise_activations(torch.tensor([[largest, -largest, 0.0]]))
    assert torch.isfinite(scales).all()
    assert codes.tolist() == [[255, 0, 128]]
    assert zeros.tolist() == [128]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_sample_that_is_not_finite_has_no_scale(odd):
    codes, scales, zeros = quantise_activations(torch.tensor([[1.0, odd], [1.0, 2.0]]))
    assert torch.isnan(scales).tolist() == [True, False]
    assert codes[0].tolist() == [0, 0]
    assert zeros[0] == 0


def test_constant_samples_are_exact_at_their_value():
    codes, scales, zeros = quantise_activations(torch.tensor([[2.55, 2.55], [-2.55, -2.55]]))
    assert codes.tolist() == [[255, 255], [0, 0]]
    assert zeros.tolist() == [0, 255]
    torch.testing.assert_close(scales, torch.tensor([0.01, 0.01]))


def test_samples_without_columns():
    codes, scales, zeros = quantise_activations(torch.empty(3, 0))
    assert codes.shape == (3, 0)
    assert scales.tolist() == [0.0] * 3
    assert zeros.tolist() == [0] * 3


def test_halves_round_to_even():
    weight = torch.tensor([[63.0, 0.5, 1.5, 2.5, -0.5, -1.5]])
    assert quantise_weight(weight, "u8s7").codes.tolist() == [[63, 0, 2, 2, 0, -2]]
    codes, scales, _ = quantise_activations(torch.tensor([[255.0, 0.5, 1.5, 2.5]]))
    assert scales.tolist() == [1.0]
    assert codes.tolist() == [[255, 0, 2, 2]]


def test_rows_of_zeros_have_codes_of_zero():
    found = quantise_weight(torch.tensor([[0.0, 0.0], [1e-45, 0.0], [1.0, -1.0]]), "u8s8")
    assert found.codes.tolist() == [[0, 0], [0, 0], [127, -127]]
    assert found.scales.tolist()[:2] == [0.0, 0.0]


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="not finite"):
        quantise_weight(torch.tensor([[1.0, float("inf")]]))


def test_weights_whose_sums_overflow_are_refused():
    with pytest.raises(ConfigError, match="overflows"):
        quantise_weight(torch.zeros(1, MAX_INPUTS + 1))


def test_codes_beyond_their_range_are_refused():
    with pytest.raises(ConfigError, match="at most 63"):
        QuantisedWeight(torch.full((1, 2), 64, dtype=torch.int8), torch.ones(1), "u8s7")
