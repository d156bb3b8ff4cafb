"""Linear layers of reduced precision against the plain-torch twins, on every processor variant."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.ops.dense.functions_twin import FUNCTIONS
from megalith.ops.dense.linear import bf16_linear, int8_linear
from megalith.ops.dense.linear_twin import bf16_linear_twin, int8_linear_twin
from megalith.ops.dense.operations import DenseDescription, DenseOperation, DenseOutput
from megalith.ops.dense.program import DenseProgram
from megalith.ops.dense.quantise import quantise_weight
from megalith.ops.native import SIMD_LEVELS
from megalith.ops.simd import use_simd

SCALES = (1.0, 1e-3, 1e3, 1e-19, 1e-38, 1e30)
"""The last ones reach subnormal products and sums that overflow."""


@pytest.fixture(autouse=True)
def widest_again():
    yield
    use_simd(None)


@st.composite
def layers(draw, largest=70):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch, inputs = draw(st.integers(0, 30)), draw(st.integers(1, largest))
    outputs = draw(st.one_of(st.just(1), st.integers(1, largest)))
    scale = torch.tensor([draw(st.sampled_from(SCALES)) for _ in range(max(1, batch))])[:batch]
    x = torch.randn(batch, inputs, generator=generator) * scale[:, None]
    if batch and draw(st.booleans()):
        x[draw(st.integers(0, batch - 1))] = draw(st.sampled_from([0.0, 1.0, -3.5, 1e-40, 3e38]))
    weight = torch.randn(outputs, inputs, generator=generator) * draw(st.sampled_from(SCALES))
    bias = torch.randn(outputs, generator=generator) if draw(st.booleans()) else None
    return x, weight, bias, draw(st.sampled_from(FUNCTIONS))


def same(one, other):
    """NaN equals NaN."""
    return torch.equal(one.nan_to_num(nan=12345.0), other.nan_to_num(nan=12345.0)) and torch.equal(
        one.isnan(), other.isnan()
    )


@given(layers(), st.sampled_from(["u8s7", "u8s8"]), st.sampled_from(SIMD_LEVELS))
@settings(deadline=None, max_examples=150)
def test_bytes_give_the_twins_bits(layer, products, level):
    x, weight, bias, function = layer
    use_simd(level)
    quantised = quantise_weight(weight, products)
    assert same(int8_linear(x, quantised, bias, function), int8_linear_twin(x, quantised, bias, function))


@given(layers(), st.sampled_from(SIMD_LEVELS))
@settings(deadline=None, max_examples=150)
def test_bfloat16_gives_the_twins_bits(layer, level):
    x, weight, bias, function = layer
    use_simd(level)
    assert same(bf16_linear(x, weight, bias, function), bf16_linear_twin(x, weight, bias, function))


@pytest.mark.parametrize("products", ["u8s7", "u8s8"])
@pytest.mark.parametrize("level", SIMD_LEVELS)
def test_the_largest_sums_are_exact(products, level):
    """All codes at their ends: nothing saturates on the way to 32 bits."""
    use_simd(level)
    x = torch.full((3, 4096), 1.0)
    x[1, ::2] = 0.0
    x[2] = -1.0
    weight = torch.full((17, 4096), -2.0)
    weight[3] = 2.0
    quantised = quantise_weight(weight, products)
    assert same(int8_linear(x, quantised), int8_linear_twin(x, quantised))


@pytest.mark.parametrize("level", SIMD_LEVELS)
def test_samples_that_are_not_finite_give_no_number(level):
    use_simd(level)
    x, weight = torch.randn(4, 21), torch.randn(5, 21)
    x[1, 20], x[2, 3] = float("nan"), -float("inf")
    for function in FUNCTIONS:
        found = int8_linear(x, quantise_weight(weight), function=function)
        assert found.isnan().all(1).tolist() == [False, True, True, False]


def linear(weight, bias=None, function="none", precision="float32", groups=1):
    layer = DenseOperation("linear", ("x",), "y", weight, bias, function, precision=precision, groups=groups)
    return DenseDescription({"x": weight.shape[1] * groups}, (layer,), (DenseOutput("y", probability=False),))


@given(layers(), st.sampled_from(SIMD_LEVELS))
@settings(deadline=None, max_examples=100)
def test_float32_is_within_rounding_of_float64(layer, level):
    """Each of `inputs` additions rounds by at most 2^-24 of the sum of magnitudes."""
    x, weight, bias, function = layer
    use_simd(level)
    found = DenseProgram(linear(weight, bias)).run(x)
    exact = x.double() @ weight.double().T
    magnitudes = x.double().abs() @ weight.double().abs().T
    bound = magnitudes * (x.shape[1] + 2) * 2.0**-24 + 2.0**-140
    if bias is not None:
        exact, bound = exact + bias.double(), bound + (exact.abs() + bias.double().abs()) * 2.0**-22
    fits = magnitudes < 3e38
    assert bool(((found.double() - exact).abs() <= bound)[fits].all())
    activated = DenseProgram(linear(weight, bias, function)).run(x)
    if function == "relu":
        assert torch.equal(activated, found.clamp(min=0))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "u8s7", "u8s8"])
@pytest.mark.parametrize("shape", [(700, 13, 512), (300, 515, 67), (33, 1100, 40)])
def test_a_sample_gives_the_same_bits_in_any_batch(precision, shape):
    batch, inputs, outputs = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, inputs, generator=generator)
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    together = DenseProgram(linear(weight, bias, "relu", precision)).run(x)
    for threads in (1, 2, 5):
        program = DenseProgram(linear(weight, bias, "relu", precision), threads=threads)
        assert torch.equal(program.run(x), together)
        for first, last in ((0, 1), (1, 3), (5, 21), (5, 80), (batch - 1, batch)):
            assert torch.equal(program.run(x[first:last]), together[first:last])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "u8s7", "u8s8"])
def test_groups_pass_through_one_layer(precision):
    x, weight, bias = torch.randn(50, 6 * 19), torch.randn(7, 19), torch.randn(7)
    grouped = DenseProgram(linear(weight, bias, "silu", precision, groups=6)).run(x)
    alone = DenseProgram(linear(weight, bias, "silu", precision)).run(x.view(300, 19))
    assert torch.equal(grouped.view(300, 7), alone)
