"""Bytes and seconds of embedding rows: what must grow grows, and caches help."""

from __future__ import annotations

import numpy as np
import pytest

from megalith.cost.calibration import calibration
from megalith.cost.embedding import (
    OPTIMIZER_VALUES,
    lookup_bytes,
    row_traffic_bytes,
    state_bytes,
    tier_seconds,
    update_bytes,
)
from megalith.hardware.catalog import catalog

CPU = catalog().device("cpu")
CONSTANTS = calibration(CPU)


def test_rows_that_fill_lines_move_no_more_than_themselves() -> None:
    assert row_traffic_bytes(CONSTANTS, 16, 4) == 64
    assert row_traffic_bytes(CONSTANTS, 1, 4) == 64
    dims = np.arange(1, 200)
    moved = row_traffic_bytes(CONSTANTS, dims, np.full(len(dims), 4))
    assert (moved >= 4 * dims).all()
    assert (moved < 4 * dims + 64).all()


def test_lines_straddled_on_average_are_counted_exactly() -> None:
    for row in range(4, 400, 4):
        starts = np.arange(4096) * row
        lines = (starts + row - 1) // 64 - starts // 64 + 1
        assert row_traffic_bytes(CONSTANTS, row // 4, 4) == pytest.approx(64 * lines.mean(), rel=0.01)


def test_rows_that_repeat_cost_less() -> None:
    many = lookup_bytes(CONSTANTS, 1000.0, 1000.0, 100.0, 64, 4)
    few = lookup_bytes(CONSTANTS, 1000.0, 100.0, 100.0, 64, 4)
    assert few < 0.6 * many
    assert update_bytes(CONSTANTS, 1000.0, 100.0, 100.0, 64, 4, 4.0) < update_bytes(
        CONSTANTS, 1000.0, 1000.0, 100.0, 64, 4, 4.0
    )


def test_updates_move_more_than_lookups_and_more_with_more_state() -> None:
    counts = (1000.0, 900.0, 100.0, 64, 4)
    by_kind = {
        kind: update_bytes(CONSTANTS, *counts, float(state_bytes(kind, 64))) for kind in OPTIMIZER_VALUES
    }
    assert lookup_bytes(CONSTANTS, *counts) < by_kind["sgd"] < by_kind["rowwise_adagrad"] < by_kind["adagrad"]
    assert by_kind["adagrad"] < by_kind["adam"]


def test_narrow_slices_move_more_in_all() -> None:
    whole = lookup_bytes(CONSTANTS, 1000.0, 1000.0, 100.0, 64, 4)
    slices = 8 * lookup_bytes(CONSTANTS, 1000.0, 1000.0, 100.0, 8, 4)
    assert slices > 1.5 * whole


def test_misses_take_the_slower_tier() -> None:
    all_hit = tier_seconds(CPU, CONSTANTS, 1e9, 1.0)
    half = tier_seconds(CPU, CONSTANTS, 1e9, 0.5)
    assert half == pytest.approx(1e9 / CPU.memory[1].bytes_per_second)
    assert half > all_hit
    arrays = tier_seconds(CPU, CONSTANTS, np.array([1e9, 1e9]), np.array([1.0, 0.5]))
    assert arrays.tolist() == pytest.approx([all_hit, half])
