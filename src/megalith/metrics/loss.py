"""Log loss, and normalized entropy (NE): log loss over the entropy of the samples' own average label.

NE 1 is what predicting the average click rate for everyone scores; lower is better, and unlike log loss it
can be compared between data of different click rates (He et al., Practical Lessons from Predicting Clicks on
Ads, 2014).
"""

from __future__ import annotations

import math

from megalith.metrics.samples import ArrayLike, samples_of


def log_loss(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> float | None:
    """The weighted mean of -log(probability given to the label), in nats."""
    samples = samples_of(predictions, labels, weights, probabilities=probabilities)
    return ratio(float((samples.losses * samples.weights).sum()), float(samples.weights.sum()))


def normalized_entropy(
    predictions: ArrayLike,
    labels: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    probabilities: bool = False,
) -> float | None:
    """Log loss over the entropy of the average label; None if all labels are the same."""
    samples = samples_of(predictions, labels, weights, probabilities=probabilities)
    return ne_of_sums(
        float((samples.losses * samples.weights).sum()),
        float((samples.labels * samples.weights).sum()),
        float(samples.weights.sum()),
    )


def entropy(rate: float) -> float:
    """Of a coin that falls on 1 at this rate, in nats.

    >>> round(entropy(0.5), 4)
    0.6931
    """
    return -sum(share * math.log(share) for share in (rate, 1.0 - rate) if share > 0.0)


def ne_of_sums(loss: float, positives: float, weight: float) -> float | None:
    """NE from the sums of losses, labels and weights."""
    rate = ratio(positives, weight)
    mean = ratio(loss, weight)
    if rate is None or mean is None or not 0.0 < rate < 1.0:
        return None
    return ratio(mean, entropy(rate))


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient, or None where the denominator is not positive."""
    return numerator / denominator if denominator > 0.0 else None
