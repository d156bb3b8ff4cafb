"""Metrics of a stream: of its last samples (`WindowMetrics`, exact) and of all of it (`RunMetrics`).

Both take batches by `update`, give a dictionary by `compute`, and resume bit for bit from a `state_dict`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from megalith.core.errors import CheckpointError
from megalith.metrics.calibration import NUM_BINS, CalibrationCurve, curve_of
from megalith.metrics.loss import ne_of_sums, ratio
from megalith.metrics.ranking import AucHistogram, exact_auc
from megalith.metrics.samples import ArrayLike, Floats, Samples, samples_of

Values = dict[str, float | None]


def evaluate(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> Values:
    """Every metric of these samples, exact.

    Keys: samples, click_rate, mean_prediction, log_loss, ne, auc, calibration, calibration_error.
    """
    return _evaluate(samples_of(predictions, labels, weights, probabilities=probabilities))


class WindowMetrics:
    """Exact metrics of the last `window_samples` samples, which it keeps in a ring."""

    def __init__(self, window_samples: int) -> None:
        if window_samples < 1:
            raise ValueError("a window holds at least one sample")
        self.window_samples = window_samples
        self._ring: Floats = np.zeros((3, window_samples))
        self._seen = 0

    def update(
        self,
        predictions: ArrayLike,
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        probabilities: bool = False,
    ) -> None:
        """Takes in the samples of a batch."""
        samples = samples_of(predictions, labels, weights, probabilities=probabilities)
        rows = np.stack([samples.logits, samples.labels, samples.weights])
        total = self._seen + rows.shape[1]
        rows = rows[:, -self.window_samples :]
        self._ring[:, np.arange(total - rows.shape[1], total) % self.window_samples] = rows
        self._seen = total

    def compute(self) -> Values:
        """The metrics of the window, with the keys of `evaluate`."""
        kept = min(self._seen, self.window_samples)
        # Oldest first, so that sums come out the same wherever the ring happens to begin.
        order = np.arange(self._seen - kept, self._seen) % self.window_samples
        return _evaluate(Samples(*self._ring[:, order]))

    def state_dict(self) -> dict[str, Any]:
        """The samples of the window, for a checkpoint."""
        return {"ring": torch.from_numpy(self._ring.copy()), "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from the samples of a checkpoint."""
        ring = _array(state["ring"])
        if ring.shape != self._ring.shape:
            raise CheckpointError(
                f"The saved metrics cover {ring.shape[-1]:,} samples and this run's {self.window_samples:,}; "
                "resume with the window it was saved with."
            )
        self._ring, self._seen = ring, int(state["seen"])


class RunMetrics:
    """Metrics of every sample since the start: sums in float64, and the AUC by histogram with its bound.

    `compute` gives the keys of `evaluate` and `auc_error`, within which the exact AUC lies of `auc`.
    """

    def __init__(self) -> None:
        self._samples = 0
        # Weighted sums: weights, losses, labels, probabilities.
        self._sums: Floats = np.zeros(4)
        self._bins: Floats = np.zeros((3, NUM_BINS))
        self._auc = AucHistogram()

    def update(
        self,
        predictions: ArrayLike,
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        probabilities: bool = False,
    ) -> None:
        """Takes in the samples of a batch."""
        samples = samples_of(predictions, labels, weights, probabilities=probabilities)
        if not len(samples.labels):
            return
        self._samples += len(samples.labels)
        self._sums += _sums(samples)
        curve = curve_of(samples)
        self._bins += np.stack([curve.counts, curve.predictions, curve.labels])
        self._auc.update(samples.logits, samples.labels, samples.weights)

    def merge(self, other: RunMetrics) -> None:
        """Takes in the samples of another accumulator, such as another rank's."""
        self._samples += other._samples
        self._sums += other._sums
        self._bins += other._bins
        self._auc.positives += other._auc.positives
        self._auc.negatives += other._auc.negatives

    def compute(self) -> Values:
        """The metrics of all samples so far."""
        auc, auc_error = self._auc.compute()
        values = _values(self._samples, self._sums, auc, self.calibration_curve())
        return {**values, "auc_error": auc_error}

    def calibration_curve(self) -> CalibrationCurve:
        """Predicted against observed click rate of all samples so far."""
        return CalibrationCurve(*self._bins)

    def state_dict(self) -> dict[str, Any]:
        """The sums and histograms, for a checkpoint."""
        return {
            "samples": self._samples,
            "sums": torch.from_numpy(self._sums.copy()),
            "calibration_bins": torch.from_numpy(self._bins.copy()),
            "auc_bins": torch.from_numpy(np.stack([self._auc.positives, self._auc.negatives])),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from the sums of a checkpoint."""
        self._samples = int(state["samples"])
        self._sums, self._bins = _array(state["sums"]), _array(state["calibration_bins"])
        self._auc.positives, self._auc.negatives = _array(state["auc_bins"])


def _evaluate(samples: Samples) -> Values:
    auc = exact_auc(samples.logits, samples.labels, samples.weights)
    return _values(len(samples.labels), _sums(samples), auc, curve_of(samples))


def _sums(samples: Samples) -> Floats:
    columns = (1.0, samples.losses, samples.labels, samples.probabilities)
    return np.array([(column * samples.weights).sum() for column in columns])


def _values(count: int, sums: Floats, auc: float | None, curve: CalibrationCurve) -> Values:
    weight, loss, positives, predicted = (float(value) for value in sums)
    return {
        "samples": count,
        "click_rate": ratio(positives, weight),
        "mean_prediction": ratio(predicted, weight),
        "log_loss": ratio(loss, weight),
        "ne": ne_of_sums(loss, positives, weight),
        "auc": auc,
        "calibration": ratio(predicted, positives),
        "calibration_error": curve.error,
    }


def _array(tensor: Any) -> Floats:
    return torch.as_tensor(tensor, dtype=torch.float64).cpu().numpy().copy()
