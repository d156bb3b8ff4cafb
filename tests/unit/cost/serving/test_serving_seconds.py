"""Seconds of serving, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.cost.serving.assumptions import ServingAssumptions
from megalith.cost.serving.card_host import card_host
from megalith.cost.serving.seconds import (
    encoded_row_bytes,
    host_seconds,
    lookup_seconds,
    product_seconds,
    row_line_bytes,
    transfer_seconds,
)
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Device, Link, MemoryTier

CARD = Device("card", {"int8": 10e12, "fp16": 1e12}, (MemoryTier("ddr", 2**30, 10e9),), on_chip_bytes=1000)
HALF = ServingAssumptions(
    product_fraction=0.5,
    lookup_fraction=0.5,
    stream_fraction=1.0,
    link_fraction=0.5,
    transfer_seconds=3e-6,
    host_request_seconds=1e-3,
    host_transfer_seconds=1e-4,
)


def straddled(row: int, line: int) -> float:
    """Bytes of the lines that packed rows touch, counted row by row over one period of their starts."""
    touched = [-(-(start + row) // line) - start // line for start in range(0, row * line, row)]
    return line * sum(touched) / len(touched)


@given(row=st.integers(1, 300), line=st.sampled_from([32, 64, 128]))
def test_rows_move_the_lines_that_they_straddle(row: int, line: int) -> None:
    assert row_line_bytes(row, line) == pytest.approx(straddled(row, line))


def test_a_table_without_rows_moves_nothing() -> None:
    assert row_line_bytes(0, 64) == 0


@pytest.mark.parametrize(
    ("precision", "dim", "expected"),
    [("float32", 7, 28), ("float16", 7, 14), ("int8", 7, 11), ("int4", 7, 8), ("int4", 64, 36)],
)
def test_rows_are_as_long_as_their_encoding(precision: str, dim: int, expected: int) -> None:
    assert encoded_row_bytes(precision, dim) == expected


def test_lookups_read_rows_slowly_and_write_vectors_quickly() -> None:
    assert lookup_seconds(CARD, HALF, 5e9, 10e9) == pytest.approx(1.0 + 1.0)


def test_products_take_the_longer_side_of_the_roofline() -> None:
    on_chip = product_seconds(CARD, HALF, {"int8": 5e12, "float16": 1e12}, 1000)
    assert on_chip == pytest.approx((1.0 + 2.0, 0.0))
    read = product_seconds(CARD, HALF, {"int8": 5e12}, 20e9)
    assert read == pytest.approx((1.0, 2.0))
    assert read.longer == 2.0


def test_a_card_without_a_type_computes_in_the_next_wider_one() -> None:
    assert product_seconds(CARD, HALF, {"float32": 1e12}, 0).compute == pytest.approx(2.0)


def test_each_transfer_begins_and_bytes_move_once() -> None:
    link = Link("pcie", 2e9, 1e-6)
    assert transfer_seconds(link, HALF, 1e9, transfers=5) == pytest.approx(5 * 4e-6 + 1.0)


def test_a_core_copies_at_its_own_rate_and_memory_is_shared() -> None:
    host = replace(CARD, cores=4, core_bytes_per_second=5e9)
    both = host_seconds(host, HALF, copied_bytes=1e9, lookup_bytes=4e9, transfers=2)
    assert both.core == pytest.approx(1e-3 + 2e-4 + 10e9 / 5e9)
    assert both.memory == pytest.approx(10e9 / 10e9)
    shared = host_seconds(replace(host, core_bytes_per_second=0.0), HALF, 1e9, 4e9, 2)
    assert shared.core == pytest.approx(1.2e-3 + 10e9 / 2.5e9)


def test_a_cluster_without_a_host_is_refused() -> None:
    with pytest.raises(ConfigError, match="'zionex' has no host beside its devices; name one that has"):
        card_host(catalog().cluster("zionex"))


def test_cards_without_a_switch_share_no_uplink() -> None:
    alone = card_host(replace(catalog().cluster("yosemite-v2"), uplink=None))
    assert alone.uplink.bytes_per_second == 6 * alone.link.bytes_per_second
