"""Formats of frozen rows: sizes, scales, errors that are bounded, weights that are refused."""

import pytest
import torch

from megalith.core.errors import ConfigError, DataError
from megalith.ops.frozen.decode import decode_rows
from megalith.ops.frozen.encode_twin import encode_rows_twin
from megalith.ops.frozen.formats import PRECISIONS, RowFormat, choose_format


def weights(rows=50, dim=32, size=0.05):
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)) * size


@pytest.mark.parametrize(
    ("form", "dim", "row_bytes"),
    [
        (RowFormat("int8", "float16"), 64, 68),
        (RowFormat("int4", "float16"), 64, 36),
        (RowFormat("int4", "float16"), 5, 7),
        (RowFormat("int8", "float32"), 32, 40),
        (RowFormat("float16"), 7, 14),
        (RowFormat("float32"), 7, 28),
    ],
)
def test_a_row_takes_what_its_columns_and_scales_take(form, dim, row_bytes):
    assert form.row_bytes(dim) == row_bytes
    rows = encode_rows_twin(weights(dim=dim), form)
    assert rows.shape == (50, row_bytes)
    assert decode_rows(rows, form, dim).shape == (50, dim)


@pytest.mark.parametrize(("precision", "scale"), [("int8", None), ("float16", "float16"), ("int3", None)])
def test_formats_that_there_are_not_are_refused(precision, scale):
    with pytest.raises(ConfigError):
        RowFormat(precision, scale)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_usual_weights_take_the_shorter_scales(precision):
    form = choose_format(weights(), precision)
    assert form.scale == ("float16" if precision.startswith("int") else None)


@pytest.mark.parametrize("size", [1e9, 1e-7])
def test_weights_beyond_float16_take_longer_scales(size):
    assert choose_format(weights(size=size), "int8").scale == "float32"


def test_rows_far_from_zero_but_close_together_take_longer_scales():
    assert choose_format(10 + weights(size=1e-4), "int8").scale == "float32"


def test_blocks_of_a_table_are_judged_together():
    blocks = [weights(size=0.1), weights(size=1e-7)]
    assert choose_format(iter(blocks), "int8").scale == "float16"
    assert choose_format(iter([*blocks, weights(size=1e7)]), "int8").scale == "float32"


@pytest.mark.parametrize("scale", ["float16", "float32"])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_a_weight_of_int8_is_off_by_half_a_scale_at_most(scale, shift):
    given = weights() + shift
    form = RowFormat("int8", scale)
    rows = encode_rows_twin(given, form)
    scales = rows[:, : form.header_bytes].contiguous().view(form.scale_dtype).float()[:, :1]
    error = (decode_rows(rows, form, 32) - given).abs()
    assert bool((error <= scales * 0.5 + given.abs() * 2**-23).all())


def test_constant_rows_and_zeros_come_back():
    form = RowFormat("int8", "float16")
    given = torch.tensor([[0.0] * 8, [0.1] * 8, [-7.3] * 8])
    back = decode_rows(encode_rows_twin(given, form), form, 8)
    assert torch.equal(back[0], given[0])
    torch.testing.assert_close(back, given, rtol=2e-6, atol=1e-7)


def test_the_search_lowers_the_squared_error_of_int4():
    given = weights(rows=200, dim=64)
    given[:, 3] *= 3
    form = RowFormat("int4", "float16")
    low, high = given.amin(1, keepdim=True), given.amax(1, keepdim=True)
    step = (high - low) / 15
    whole = ((given - low) / step).round() * step + low
    searched = decode_rows(encode_rows_twin(given, form), form, 64)
    assert float((searched - given).square().sum()) < 0.95 * float((whole - given).square().sum())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_that_are_no_numbers_are_refused_by_name(bad, precision):
    given = weights()
    given[7, 3] = bad
    form = RowFormat(precision, "float16" if precision.startswith("int") else None)
    with pytest.raises(DataError, match=r"Row 7 of items holds (nan|-?inf) in column 3"):
        encode_rows_twin(given, form, "items")


def test_what_a_format_cannot_hold_is_refused():
    with pytest.raises(DataError, match="too large for float16"):
        encode_rows_twin(weights(size=1e9), RowFormat("int8", "float16"))
    with pytest.raises(DataError, match="beyond float16"):
        encode_rows_twin(weights(size=1e9), RowFormat("float16"))
    with pytest.raises(DataError, match="spans more than float32"):
        encode_rows_twin(torch.tensor([[3e38, -3e38]]), RowFormat("int8", "float32"))
