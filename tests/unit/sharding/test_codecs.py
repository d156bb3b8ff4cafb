"""Codecs of exchanged vectors: what comes back is as near as each promises, whatever goes in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megalith.sharding.codecs import row_codec

# Relative to the largest magnitude of the vector (int8) or to the number itself (the others).
PRECISION = {"fp32": 0.0, "fp16": 2**-11, "bf16": 2**-8, "int8": 0.51 / 127}


@st.composite
def rows_of_vectors(draw):
    widths = draw(st.lists(st.integers(1, 9), min_size=0, max_size=5))
    num_rows = draw(st.integers(0, 4))
    scale = 2.0 ** draw(st.integers(-60, 60))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    rows = torch.randn(num_rows, sum(widths), generator=generator) * scale
    rows[torch.rand(rows.shape, generator=generator) < 0.2] = 0.0
    return widths, rows


@pytest.mark.parametrize("codec", PRECISION)
@given(rows_of_vectors())
def test_rows_come_back_within_the_precision_of_the_codec(codec, case):
    widths, rows = case
    made = row_codec(codec, widths)
    encoded = made.encode(rows)
    assert encoded.shape == (len(rows), made.row_bytes)
    assert encoded.dtype == torch.uint8
    decoded = made.decode(encoded)
    assert decoded.dtype == torch.float32
    assert decoded.shape == rows.shape
    for before, after in zip(rows.split(widths, 1), decoded.split(widths, 1), strict=True):
        size = before.abs().amax(1, keepdim=True) if codec == "int8" else before.abs()
        # Half precision has no fine steps far below the largest number of its row.
        floor = rows.abs().amax(1, keepdim=True) * 2.0**-38 if codec == "fp16" else 0.0
        assert ((before - after).abs() <= size * PRECISION[codec] + floor).all()


@pytest.mark.parametrize("codec", PRECISION)
@given(rows_of_vectors(), st.data())
def test_a_block_can_be_cut_between_any_rows(codec, case, data):
    widths, rows = case
    cut = data.draw(st.integers(0, len(rows)))
    made = row_codec(codec, widths)
    whole = made.encode(rows)
    parts = [made.encode(rows[:cut]), made.encode(rows[cut:])]
    assert torch.equal(whole, torch.cat(parts))
    assert torch.equal(made.decode(whole)[cut:], made.decode(whole[cut:]))


def test_bytes_of_a_row():
    sizes = {codec: row_codec(codec, [64, 64]).row_bytes for codec in PRECISION}
    assert sizes == {"fp32": 512, "fp16": 260, "bf16": 256, "int8": 136}


def test_gradients_of_a_large_batch_survive_half_precision():
    rows = torch.full((1, 8), 3e-9)
    codec = row_codec("fp16", [8])
    torch.testing.assert_close(codec.decode(codec.encode(rows)), rows, rtol=1e-3, atol=0)


@pytest.mark.parametrize("codec", PRECISION)
def test_a_number_that_is_none_stays_none(codec):
    made = row_codec(codec, [3])
    decoded = made.decode(made.encode(torch.tensor([[1.0, float("nan"), 2.0]])))
    assert decoded.isnan().any()
