"""Operators: never faster than the roofline, slower on shapes that do not fill it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.cost.calibration import calibration
from megalith.cost.memory import state_bytes
from megalith.cost.operators import (
    AttentionShape,
    flash_attention_seconds,
    gemm_seconds,
    peak_flops,
    stream_seconds,
)
from megalith.hardware.catalog import catalog

A100 = catalog().device("a100-80g")
CONSTANTS = calibration(A100)
sizes = st.integers(1, 20000)


def seconds(rows: int, columns: int, depth: int, batch: int = 1, device: str = "a100-80g") -> float:
    found = catalog().device(device)
    return gemm_seconds(found, calibration(found), "fp16", rows, columns, depth, batch)


@given(sizes, sizes, sizes, st.sampled_from(["a100-80g", "h100-80g", "mi300x", "cpu"]))
def test_no_product_beats_the_roofline(rows: int, columns: int, depth: int, device: str) -> None:
    found = catalog().device(device)
    flops = 2.0 * rows * columns * depth
    moved = 2.0 * (rows * depth + depth * columns + rows * columns)
    floor = max(flops / peak_flops(found, "fp16"), moved / found.bytes_per_second)
    assert seconds(rows, columns, depth, device=device) > floor


def test_a_large_product_reaches_the_fitted_share_of_peak() -> None:
    share = 2 * 8192**3 / seconds(8192, 8192, 8192) / A100.flops["fp16"]
    assert 0.9 * CONSTANTS.gemm_fraction < share <= CONSTANTS.gemm_fraction


def test_one_row_more_than_a_whole_number_of_tiles_costs_a_tile() -> None:
    assert seconds(4096 + 1, 4096, 4096) > seconds(4096, 4096, 4096) * 1.015


def test_a_last_wave_that_is_nearly_empty_costs_more_per_flop() -> None:
    # 108 multiprocessors: 9 x 12 tiles of 128 x 256 are one wave, 10 x 12 begin a second one.
    full = seconds(9 * 128, 12 * 256, 4096) / (9 * 12)
    begun = seconds(10 * 128, 12 * 256, 4096) / (10 * 12)
    assert begun > 1.2 * full


def test_a_short_inner_dimension_wastes_flops() -> None:
    assert seconds(8192, 8192, 64) > 1.5 * seconds(8192, 8192, 8192) * 64 / 8192


def test_accumulating_moves_more_than_writing() -> None:
    plain = gemm_seconds(A100, CONSTANTS, "fp16", 4096, 4096, 512)
    assert gemm_seconds(A100, CONSTANTS, "fp16", 4096, 4096, 512, accumulated_bytes=4) > plain


def test_streams_take_their_bytes_at_the_reached_bandwidth() -> None:
    assert stream_seconds(A100, CONSTANTS, 1e9) == pytest.approx(1e9 / (2039e9 * CONSTANTS.memory_fraction))


def test_causal_attention_does_half_and_backward_more() -> None:
    attention = (A100, CONSTANTS, "bf16", AttentionShape(32, 4096, 4096, 128))
    causal = flash_attention_seconds(*attention) - CONSTANTS.kernel_seconds
    whole = flash_attention_seconds(*attention, causal=False) - CONSTANTS.kernel_seconds
    assert whole == pytest.approx(2 * causal)
    assert flash_attention_seconds(*attention, backward=True) > 2.5 * causal


def test_a_device_without_a_type_uses_a_wider_one() -> None:
    assert peak_flops(A100, "fp8") == A100.flops["bf16"]
    assert peak_flops(catalog().device("h200"), "fp8") == 1979e12


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [("none", 16.0), ("zero1", 4 + 12 / 8), ("zero2", 2 + 14 / 8), ("zero3", 16 / 8)],
)
def test_state_is_what_zero_counts(sharding: str, expected: float) -> None:
    assert state_bytes(1.0, "fp16", sharding, 8).total == pytest.approx(expected)


def test_bf16_gradients_are_summed_in_single_precision() -> None:
    assert state_bytes(1.0, "bf16", "none", 1).total == 18
    assert state_bytes(1.0, "fp32", "none", 1).total == 16
