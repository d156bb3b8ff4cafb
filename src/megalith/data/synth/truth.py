"""The planted truth: the click probability of a row.

    logit = bias + effect of each frequent id + a curve of each number + low-rank products of a few fields

Only ids above 0.3% of the rows have an effect: some hundred weights that a million rows can teach, so the
best log loss is within reach of a model and not only known. Rare ids say nothing of their own (unless
`--tail` asks for it: tail.py), a missing value has one weight a field, a missing number counts as 0 because
that is how prepared data shows it.
The parts are scaled on a pilot sample until each carries its share of the logit's variance, which sets how
predictable clicks are; then the bias is solved for the click rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megalith.data.synth.calibration import NumericShape
from megalith.data.synth.drift import RankChanges

Floats = NDArray[np.float32]

LOGIT_DEVIATION = 1.25
"""Spread of the logit: gives an AUC near that of good models on Criteo."""
VARIANCE_SHARES = {"ids": 0.5, "numbers": 0.46, "products": 0.04, "bags": 0.2}
EFFECT_SHARE = 3e-3
"""An id needs this share of the rows to have an effect ..."""
WHOLE_EFFECT_SHARE = 4e-2
"""... and this share to have the whole of it: what rarer ids say takes a model longer to learn."""
MOVING_SHARE = 0.3
"""Share of the effects that change with time."""
PAIRS = 4
PRODUCT_RANK = 1
PRODUCT_IDS = 8
"""Ids of a field that take part in products; the others count as 0 there."""
PRODUCT_SHARE = 0.1
"""An id needs this share of the rows to take part in products in full."""


@dataclass(frozen=True, slots=True)
class FieldEffects:
    """Weights of one field by key: ids of the body, ids that enter, then `rare`, then `missing`."""

    start: Floats
    slope: Floats
    """Change of a weight from the start of the stream to its end."""

    def at(self, time: float) -> Floats:
        """The weights at `time` (0 the start of the stream, 1 its end)."""
        return self.start + np.float32(time) * self.slope


@dataclass(frozen=True, slots=True)
class FieldProduct:
    """Adds the dot product of two fields' small vectors."""

    left: int
    right: int
    left_vectors: Floats
    """[keys, PRODUCT_RANK]"""
    right_vectors: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """Effect of a number z = sign(x) log(1 + |x|): it rises or falls around `centre` and saturates."""

    centre: float
    width: float
    weight: float

    def __call__(self, logs: Floats) -> Floats:
        scaled = (logs - np.float32(self.centre)) * np.float32(1.0 / self.width)
        curve = np.float32(self.weight) * scaled / np.sqrt(np.float32(1.0) + scaled * scaled)
        return curve.astype(np.float32, copy=False)


def plant_field(
    shares: NDArray[np.float64], changes: RankChanges, drift: float, generator: np.random.Generator
) -> FieldEffects:
    """Random effects for the frequent ids of a field, and for those that will take a frequent id's place."""
    weight = np.where(shares >= EFFECT_SHARE, np.sqrt(np.minimum(shares / WHOLE_EFFECT_SHARE, 1.0)), 0.0)
    # In the order of the keys: the body, the ids that enter, rare ids, the missing value.
    weights = np.concatenate([weight, weight[changes.entered], [0.0, 1.0]])
    weights *= np.exp(generator.normal(0.0, 0.6))
    start = generator.normal(0.0, 1.0, len(weights)) * weights
    moving = generator.random(len(weights)) < MOVING_SHARE
    slope = generator.normal(0.0, 1.0, len(weights)) * weights * moving * drift
    return FieldEffects(start.astype(np.float32), slope.astype(np.float32))


def plant_curve(shape: NumericShape, generator: np.random.Generator) -> Curve:
    """A curve placed where the field's values are."""
    logs = np.log1p(np.maximum(shape.quantiles, 0.0))
    return Curve(
        centre=float(logs[6] * generator.uniform(0.6, 1.2)),
        width=float(0.8 + (logs[10] - logs[2]) / 2.0),
        weight=float(generator.normal()),
    )


def plant_products(
    shares: list[NDArray[np.float64]], keys: list[int], generator: np.random.Generator
) -> list[FieldProduct]:
    """Products of pairs of fields whose first ids cover most rows, so that every product is seen often."""
    covering = [
        field for field, share in enumerate(shares) if share[0] < 0.7 and share[:PRODUCT_IDS].sum() > 0.6
    ]
    chosen = generator.permutation(covering)[: 2 * PAIRS]
    products = []
    for left, right in zip(chosen[0::2], chosen[1::2], strict=False):
        vectors = []
        for field in (int(left), int(right)):
            vector = np.zeros((keys[field], PRODUCT_RANK), dtype=np.float32)
            taking_part = min(PRODUCT_IDS, len(shares[field]))
            # Bounded, and small for rarer ids, so that no rare pair of ids carries much of the variance.
            weight = np.sqrt(np.minimum(shares[field][:taking_part] / PRODUCT_SHARE, 1.0))
            signs = generator.choice((-1.0, 1.0), (taking_part, PRODUCT_RANK))
            vector[:taking_part] = signs * generator.uniform(0.5, 1.5, signs.shape) * weight[:, None]
            vectors.append(vector)
        products.append(FieldProduct(int(left), int(right), vectors[0], vectors[1]))
    return products


def solve_bias(logits: NDArray[np.float64], click_rate: float) -> float:
    """The bias at which the mean probability of these logits is `click_rate`, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.mean(1.0 / (1.0 + np.exp(-(logits + middle))))) < click_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def log_loss_sum(labels: Floats, probabilities: Floats) -> float:
    """Sum of -log p(label), in float64."""
    chosen = np.where(labels > 0, probabilities.astype(np.float64), 1.0 - probabilities.astype(np.float64))
    return float(-np.log(np.maximum(chosen, 1e-12)).sum())


def entropy(click_rate: float) -> float:
    """Log loss of always predicting the click rate: the unit of normalised entropy (NE)."""
    if not 0.0 < click_rate < 1.0:
        return 0.0
    return float(-click_rate * np.log(click_rate) - (1 - click_rate) * np.log1p(-click_rate))
