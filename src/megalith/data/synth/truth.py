"""The planted truth: the click probability of a row.

    logit = bias + effect of each frequent id + a curve of each number + low-rank products of a few fields

Only ids above 0.1% of the rows have an effect: a few thousand weights that a million rows can teach, so the
best log loss is within reach of a model and not only known. Rare ids say nothing of their own, a missing
value has one weight a field, a missing number counts as 0 because that is how prepared data shows it.
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
VARIANCE_SHARES = {"ids": 0.5, "numbers": 0.3, "products": 0.2, "bags": 0.25}
EFFECT_SHARE = 1e-3
"""An id needs this share of the rows to have an effect."""
MOVING_SHARE = 0.3
"""Share of the effects that change with time."""
PAIRS = 6
PRODUCT_RANK = 2
PRODUCT_IDS = 12
"""Ids of a field that take part in products; the others count as 0 there."""


@dataclass(frozen=True, slots=True)
class FieldEffects:
    """Weights of one field by key: ids of the body, ids that enter, then `rare`, then `missing`."""

    start: Floats
    slope: Floats
    """Change of a weight from the start of the stream to its end."""

    def at(self, time: float) -> Floats:
        return self.start + np.float32(time) * self.slope


@dataclass(frozen=True, slots=True)
class Product:
    """Adds the dot product of two fields' small vectors."""

    left: int
    right: int
    left_vectors: Floats
    """[keys, PRODUCT_RANK]"""
    right_vectors: Floats


@dataclass(frozen=True, slots=True)
class Curve:
    """Effect of a number z = log(1 + max(x, 0)): saturating, or a bump around `centre`."""

    centre: float
    width: float
    weight: float
    bump: bool

    def __call__(self, logs: Floats) -> Floats:
        scaled = (logs - np.float32(self.centre)) * np.float32(1.0 / self.width)
        square = np.float32(1.0) + scaled * scaled
        shape = 1.0 / square if self.bump else scaled / np.sqrt(square)
        return (np.float32(self.weight) * shape).astype(np.float32, copy=False)


def plant_field(
    shares: NDArray[np.float64], changes: RankChanges, drift: float, generator: np.random.Generator
) -> FieldEffects:
    """Random effects for the frequent ids of a field, and for those that will take a frequent id's place."""
    body = len(shares)
    frequent = shares >= EFFECT_SHARE
    keys = np.concatenate([frequent, frequent[changes.entered], [False, True]])
    strength = np.exp(generator.normal(0.0, 0.6))
    start = np.where(keys, generator.normal(0.0, strength, len(keys)), 0.0)
    moving = keys & (generator.random(len(keys)) < MOVING_SHARE)
    slope = np.where(moving, generator.normal(0.0, strength, len(keys)), 0.0) * drift
    assert len(keys) == body + len(changes.entered) + 2
    return FieldEffects(start.astype(np.float32), slope.astype(np.float32))


def plant_curve(shape: NumericShape, generator: np.random.Generator) -> Curve:
    """A curve placed where the field's values are."""
    logs = np.log1p(np.maximum(shape.quantiles, 0.0))
    return Curve(
        centre=float(logs[6] * generator.uniform(0.6, 1.2)),
        width=float(0.5 + (logs[10] - logs[2]) / 3.0),
        weight=float(generator.normal()),
        bump=bool(generator.random() < 0.25),
    )


def plant_products(
    shares: list[NDArray[np.float64]], keys: list[int], generator: np.random.Generator
) -> list[Product]:
    """Products of pairs of fields whose first ids cover most rows, so that every product is seen often."""
    covering = [field for field, share in enumerate(shares) if share[:PRODUCT_IDS].sum() > 0.6]
    chosen = generator.permutation(covering)[: 2 * PAIRS]
    products = []
    for left, right in zip(chosen[0::2], chosen[1::2], strict=False):
        vectors = []
        for field in (int(left), int(right)):
            vector = np.zeros((keys[field], PRODUCT_RANK), dtype=np.float32)
            taking_part = min(PRODUCT_IDS, len(shares[field]))
            vector[:taking_part] = generator.normal(size=(taking_part, PRODUCT_RANK))
            vectors.append(vector)
        products.append(Product(int(left), int(right), vectors[0], vectors[1]))
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
