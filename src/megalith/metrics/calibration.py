"""Calibration: whether what is predicted at 10% happens in 10% of cases.

Bins are even in probability. The expected calibration error is the mean distance between predicted and
observed rate over the bins, each weighted by its samples (Naeini et al., 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megalith.metrics.loss import ratio
from megalith.metrics.samples import ArrayLike, Floats, Samples, samples_of

NUM_BINS = 20


@dataclass(frozen=True)
class CalibrationCurve:
    """Sums over each bin [k / bins, (k + 1) / bins) of predicted probability; the last bin includes 1."""

    counts: Floats
    """Weight of the samples in each bin."""
    predictions: Floats
    """Weighted sum of predicted probabilities."""
    labels: Floats
    """Weighted sum of labels."""

    @property
    def error(self) -> float | None:
        """The expected calibration error."""
        return ratio(float(np.abs(self.predictions - self.labels).sum()), float(self.counts.sum()))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each bin that holds samples: its edges, count, mean prediction and click rate."""
        bins = len(self.counts)
        return [
            {
                "low": k / bins,
                "high": (k + 1) / bins,
                "count": float(self.counts[k]),
                "mean_prediction": float(self.predictions[k] / self.counts[k]),
                "click_rate": float(self.labels[k] / self.counts[k]),
            }
            for k in np.flatnonzero(self.counts)
        ]


def calibration(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> float | None:
    """Mean prediction over mean label: 1 is right, 1.1 predicts 10% too many clicks; None without clicks."""
    samples = samples_of(predictions, labels, weights, probabilities=probabilities)
    predicted = float((samples.probabilities * samples.weights).sum())
    return ratio(predicted, float((samples.labels * samples.weights).sum()))


def calibration_curve(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
    num_bins: int = NUM_BINS,
) -> CalibrationCurve:
    """Predicted and observed click rate in bins of the predicted probability."""
    return curve_of(samples_of(predictions, labels, weights, probabilities=probabilities), num_bins)


def expected_calibration_error(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
    num_bins: int = NUM_BINS,
) -> float | None:
    """Mean distance between predicted and observed click rate over the bins; None without samples."""
    return calibration_curve(
        predictions, labels, weights, probabilities=probabilities, num_bins=num_bins
    ).error


def curve_of(samples: Samples, num_bins: int = NUM_BINS) -> CalibrationCurve:
    """The curve of samples that are checked already."""
    chances, weights = samples.probabilities, samples.weights
    bins = np.minimum(np.nan_to_num(chances * num_bins).astype(np.int64), num_bins - 1)

    def total(values: Floats) -> Floats:
        # Without samples bincount gives integers.
        return np.bincount(bins, values, num_bins).astype(np.float64)

    return CalibrationCurve(total(weights), total(weights * chances), total(weights * samples.labels))
