"""AUC: the chance that a positive scores above a negative, a tie counting half.

`auc` is exact, by sorting. `AucHistogram` keeps a stream of any length in fixed memory and says how far it
can be off: two samples in different bins are ordered right, and a pair in one bin counts half where it should
count 0, a half or 1; so the error is at most half the share of positive-negative pairs that share a bin.
"""

from __future__ import annotations

import numpy as np

from megalith.metrics.samples import ArrayLike, Floats, samples_of

NUM_BINS = 2**16
# Even bins over these logits; sigmoid(16) is 1 - 1e-7, and what lies beyond falls in the outermost bins.
_LARGEST_LOGIT = 16.0


def auc(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> float | None:
    """The exact AUC; None where the samples hold only one class, or a prediction is not a number."""
    samples = samples_of(predictions, labels, weights, probabilities=probabilities)
    return exact_auc(samples.logits, samples.labels, samples.weights)


def exact_auc(scores: Floats, labels: Floats, weights: Floats) -> float | None:
    """The AUC of scores, labels and weights that are checked already."""
    if not len(scores):
        return None
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    if np.isnan(ranked[-1]):
        return None
    # One group for each distinct score, so that ties count as a group.
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    positives = np.add.reduceat((weights * labels)[order], starts)
    negatives = np.add.reduceat((weights * (1.0 - labels))[order], starts)
    return _grouped_auc(positives, negatives)[0]


class AucHistogram:
    """The AUC of a stream, from weights of positives and negatives in 65,536 bins of the logit."""

    def __init__(self) -> None:
        self.positives: Floats = np.zeros(NUM_BINS)
        self.negatives: Floats = np.zeros(NUM_BINS)

    def update(self, logits: Floats, labels: Floats, weights: Floats) -> None:
        """Takes in some samples."""
        scaled = (logits + _LARGEST_LOGIT) * (NUM_BINS / (2 * _LARGEST_LOGIT))
        # Predictions that are not numbers, of a run that diverged, lie in bin 0; log loss shows them.
        bins = np.clip(np.nan_to_num(scaled, nan=0.0), 0, NUM_BINS - 1).astype(np.int64)
        np.add.at(self.positives, bins, weights * labels)
        np.add.at(self.negatives, bins, weights * (1.0 - labels))

    def compute(self) -> tuple[float | None, float | None]:
        """The AUC and a bound on its error, both None where the stream holds only one class."""
        return _grouped_auc(self.positives, self.negatives)


def _grouped_auc(positives: Floats, negatives: Floats) -> tuple[float | None, float | None]:
    """AUC of groups in rising order of score, and half the share of pairs within a group."""
    pairs = float(positives.sum()) * float(negatives.sum())
    if not pairs > 0.0:
        return None, None
    below = np.cumsum(negatives) - negatives
    ordered = float((positives * below).sum())
    tied = float((positives * negatives).sum())
    return (ordered + tied / 2) / pairs, tied / 2 / pairs
