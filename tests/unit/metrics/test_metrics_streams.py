"""The accumulators against the metrics of the whole, and across a resume."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import CheckpointError
from megalith.metrics import RunMetrics, WindowMetrics, calibration_curve, evaluate


def stream(seed: int, sizes: list[int]) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        (
            rng.normal(size=size).astype(np.float32),
            (rng.random(size) < 0.4).astype(np.float32),
            rng.integers(1, 4, size).astype(np.float32),
        )
        for size in sizes
    ]


def joined(batches: list[tuple[Any, Any, Any]], last: int | None = None) -> list[Any]:
    columns = [np.concatenate(column) for column in zip(*batches, strict=True)]
    return [column[-last:] if last else column for column in columns]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


sizes_of_batches = st.lists(st.integers(0, 25), min_size=1, max_size=8)


@given(st.integers(0, 1000), sizes_of_batches, st.integers(1, 40))
@settings(deadline=None)
def test_a_window_gives_the_exact_metrics_of_its_last_samples(
    seed: int, sizes: list[int], window: int
) -> None:
    metrics = WindowMetrics(window)
    batches = stream(seed, sizes)
    for batch in batches:
        metrics.update(*batch)
    assert metrics.compute() == evaluate(*joined(batches, window))


@given(st.integers(0, 1000), sizes_of_batches)
@settings(deadline=None, max_examples=30)
def test_a_run_gives_the_metrics_of_all_samples_and_bounds_its_auc(seed: int, sizes: list[int]) -> None:
    metrics = RunMetrics()
    batches = stream(seed, sizes)
    for batch in batches:
        metrics.update(*batch)
    found, exact = metrics.compute(), evaluate(*joined(batches))
    bound = found.pop("auc_error")
    estimate, truth = found.pop("auc"), exact.pop("auc")
    if truth is None or estimate is None or bound is None:
        assert truth is estimate is bound is None
    else:
        assert abs(estimate - truth) <= bound + 1e-12
    assert found == pytest.approx(exact, abs=1e-12)
    curve = calibration_curve(*joined(batches))
    np.testing.assert_allclose(metrics.calibration_curve().labels, curve.labels)


@pytest.mark.parametrize("make", [RunMetrics, lambda: WindowMetrics(30)])
@pytest.mark.parametrize("stop", range(6))
def test_resuming_is_bit_identical(make: Any, stop: int) -> None:
    batches = stream(7, [10, 25, 3, 0, 17])
    whole, first, second = make(), make(), make()
    for batch in batches:
        whole.update(*batch)
    for batch in batches[:stop]:
        first.update(*batch)
    second.load_state_dict(through_a_file(first.state_dict()))
    for batch in batches[stop:]:
        second.update(*batch)
    assert second.compute() == whole.compute()
    for key, value in whole.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second.state_dict()[key]))


def test_a_state_is_a_copy() -> None:
    batches = stream(7, [10, 25])
    for metrics in (RunMetrics(), WindowMetrics(30)):
        metrics.update(*batches[0])
        before, state = metrics.compute(), metrics.state_dict()
        metrics.update(*batches[1])
        metrics.load_state_dict(state)
        assert metrics.compute() == before


def test_ranks_merged_match_one() -> None:
    batches = stream(3, [40, 40])
    one, left, right = RunMetrics(), RunMetrics(), RunMetrics()
    for batch, rank in zip(batches, (left, right), strict=True):
        one.update(*batch)
        rank.update(*batch)
    left.merge(right)
    assert left.compute() == one.compute()


def test_a_window_of_another_size_is_refused() -> None:
    with pytest.raises(CheckpointError, match="cover 10 samples and this run's 20"):
        WindowMetrics(20).load_state_dict(WindowMetrics(10).state_dict())
