"""Each metric against its definition, spelled out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from megalith.metrics import (
    AucHistogram,
    auc,
    calibration,
    calibration_curve,
    evaluate,
    expected_calibration_error,
    log_loss,
    normalized_entropy,
)

# Few distinct logits, so that ties are common.
logits_with_ties = st.one_of(st.sampled_from([-2.0, -0.5, 0.0, 0.5]), st.floats(-30, 30, width=32))
sample = st.tuples(logits_with_ties, st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
samples = st.lists(sample, min_size=1, max_size=40)


def columns(rows: list[tuple[float, float, float]]) -> tuple[list[float], list[float], list[float]]:
    logits, labels, weights = zip(*rows, strict=True)
    return list(logits), list(labels), list(weights)


def auc_by_pairs(scores: list[float], labels: list[float], weights: list[float]) -> float | None:
    """All pairs of a positive and a negative: 1 if the positive scores higher, a half for a tie."""
    won = total = 0.0
    for i, positive in enumerate(labels):
        for j, negative in enumerate(labels):
            if positive == 1 and negative == 0:
                pair = weights[i] * weights[j]
                total += pair
                won += pair * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
    return won / total if total else None


def loss_by_definition(logit: float, label: float) -> float:
    return math.log1p(math.exp(-logit)) if label else math.log1p(math.exp(logit))


@given(samples)
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[float, float, float]]) -> None:
    assert auc(*columns(rows)) == pytest.approx(auc_by_pairs(*columns(rows)), abs=1e-12)


@given(samples)
def test_log_loss_and_ne_follow_their_definitions(rows: list[tuple[float, float, float]]) -> None:
    logits, labels, weights = columns(rows)
    total = sum(weights)
    if not total:
        assert log_loss(logits, labels, weights) is None
        return
    mean = sum(weight * loss_by_definition(x, y) for x, y, weight in rows) / total
    assert log_loss(logits, labels, weights) == pytest.approx(mean, rel=1e-12, abs=1e-15)
    rate = sum(y * weight for _, y, weight in rows) / total
    found = normalized_entropy(logits, labels, weights)
    if rate in (0.0, 1.0):
        assert found is None
    else:
        entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
        assert found == pytest.approx(mean / entropy, rel=1e-9)


@given(samples, st.integers(1, 25))
def test_calibration_follows_its_definition(rows: list[tuple[float, float, float]], num_bins: int) -> None:
    logits, labels, weights = columns(rows)
    chances = [1 / (1 + math.exp(-logit)) for logit in logits]
    # On the border of two bins the last bit of the exponential decides, and either is right.
    assume(all(abs(p * num_bins - round(p * num_bins)) > 1e-9 for p in chances))
    total, clicks = sum(weights), sum(y * w for y, w in zip(labels, weights, strict=True))
    predicted = sum(p * w for p, w in zip(chances, weights, strict=True))
    expected = pytest.approx(predicted / clicks, rel=1e-9) if clicks else None
    assert calibration(logits, labels, weights) == expected
    error = 0.0
    for k in range(num_bins):
        inside = [i for i, p in enumerate(chances) if min(int(p * num_bins), num_bins - 1) == k]
        error += abs(sum(weights[i] * (chances[i] - labels[i]) for i in inside))
    found = expected_calibration_error(logits, labels, weights, num_bins=num_bins)
    assert found == pytest.approx(error / total if total else None, abs=1e-9)


@given(samples)
def test_the_histogram_is_within_its_bound_of_the_exact_auc(rows: list[tuple[float, float, float]]) -> None:
    logits, labels, weights = (np.array(column) for column in columns(rows))
    histogram = AucHistogram()
    for part in np.array_split(np.arange(len(rows)), 3):
        histogram.update(logits[part], labels[part], weights[part])
    estimate, bound = histogram.compute()
    exact = auc(logits, labels, weights)
    if exact is None:
        assert (estimate, bound) == (None, None)
    else:
        assert estimate is not None
        assert bound is not None
        assert abs(estimate - exact) <= bound + 1e-12


def test_the_histogram_is_near_the_exact_auc_on_ordinary_scores() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 1, 20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    histogram = AucHistogram()
    histogram.update(logits, labels, np.ones(20_000))
    estimate, bound = histogram.compute()
    assert estimate is not None
    assert bound is not None
    assert bound < 1e-3
    assert auc(logits, labels) == pytest.approx(estimate, abs=bound)


def test_the_bound_is_reached_when_one_bin_hides_the_order() -> None:
    # Both logits fall in the last bin: the histogram sees a tie where the order is perfect, or all wrong.
    histogram = AucHistogram()
    histogram.update(np.array([20.0, 30.0]), np.array([0.0, 1.0]), np.ones(2))
    assert histogram.compute() == (0.5, 0.5)


def test_constant_predictions_score_half_and_the_average_rate_scores_ne_one() -> None:
    labels = [1.0, 0.0, 0.0, 0.0]
    values = evaluate([math.log(1 / 3)] * 4, labels)
    assert values["auc"] == 0.5
    assert values["ne"] == pytest.approx(1.0)
    assert values["calibration"] == pytest.approx(1.0)
    assert values["calibration_error"] == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_auc_and_no_ne(label: float) -> None:
    values = evaluate([0.3, -0.2], [label, label])
    assert values["auc"] is None
    assert values["ne"] is None
    assert values["click_rate"] == label
    assert (values["calibration"] is None) == (label == 0.0)


def test_no_samples_have_no_metrics() -> None:
    assert evaluate([], []) == {
        "samples": 0,
        **dict.fromkeys(["click_rate", "mean_prediction", "log_loss", "ne", "auc"]),
        **dict.fromkeys(["calibration", "calibration_error"]),
    }


def test_log_loss_is_exact_at_logits_that_saturate_the_probability() -> None:
    assert log_loss([1000.0], [0.0]) == 1000.0
    assert log_loss([40.0], [1.0]) == pytest.approx(math.exp(-40), rel=1e-9)
    assert log_loss([-1000.0, 1000.0], [0.0, 1.0]) == 0.0


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=1, max_size=20))
def test_probabilities_give_what_their_logits_give(rows: list[tuple[float, float]]) -> None:
    chances = np.clip([row[0] for row in rows], 1e-15, 1 - 1e-15)
    labels = [row[1] for row in rows]
    mean = -np.mean([math.log(p) if y else math.log1p(-p) for p, y in zip(chances, labels, strict=True)])
    found = log_loss([row[0] for row in rows], labels, probabilities=True)
    assert found == pytest.approx(float(mean), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_of_any_type_and_shape_are_taken(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.5], [-1.0], [2.0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([1, 0, 1], dtype=torch.int64)
    assert evaluate(logits, labels) == evaluate([0.5, -1.0, 2.0], [1, 0, 1])


def test_a_weight_of_two_counts_as_the_sample_twice() -> None:
    once = evaluate([0.5, -1.0, 0.1, 0.2], [1, 0, 0, 1], [2, 1, 1, 2])
    twice = evaluate([0.5, -1.0, 0.1, 0.2, 0.5, 0.2], [1, 0, 0, 1, 1, 1])
    assert {**once, "samples": 0} == pytest.approx({**twice, "samples": 0})


def test_predictions_that_are_not_numbers_show_in_the_loss_and_break_nothing() -> None:
    values: dict[str, Any] = evaluate([float("nan"), 1.0], [0, 1])
    assert math.isnan(values["log_loss"])
    assert values["auc"] is None
    histogram = AucHistogram()
    histogram.update(np.array([np.nan, np.inf, -np.inf]), np.array([0.0, 1.0, 0.0]), np.ones(3))
    assert histogram.compute()[0] == 1.0


def test_the_curve_lists_bins_that_hold_samples() -> None:
    rows = calibration_curve([0.05, 0.07, 0.95], [0, 1, 1], probabilities=True, num_bins=10).rows()
    assert [(row["low"], row["count"], row["click_rate"]) for row in rows] == [
        (0.0, 2.0, 0.5),
        (0.9, 1.0, 1.0),
    ]
    assert rows[0]["mean_prediction"] == pytest.approx(0.06)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="2 predictions, 3 labels"):
        log_loss([0.1, 0.2], [0, 1, 1])
