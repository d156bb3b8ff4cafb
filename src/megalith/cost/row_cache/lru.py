"""Misses of a least-recently-used cache in closed form: Che's approximation, for sets and for a cold start.

A row that was last used t batches ago is still there if fewer rows than the cache has places were used since.
Che, Tung and Wang (2002) take the t at which that happens for the same for all rows, because the number of
distinct rows in t batches, D(t), hardly varies. Here a row competes with those of its own set only, so
that

    P(there after t batches) = P(Poisson(D(t) / sets) < ways)

and a row of a class is missing with the sum of this over the batches since its last use. In the first batches
of a run nothing has been used for longer than the run has lasted, and a row that was never used is missing.
"""

from __future__ import annotations

import numpy as np

from megalith.cost.row_cache.frequencies import AccessFrequencies, Floats
from megalith.cost.row_cache.geometry import WAYS, CacheGeometry, MissCurve

_POINTS_PER_OCTAVE = 8


def lru_misses(frequencies: AccessFrequencies, cache: CacheGeometry, batch: int, steps: int) -> MissCurve:
    """Rows that are not in the cache when a batch wants them, and rows that leave, by step of a run."""
    age = step_grid(steps)
    in_a_set = frequencies.distinct(age * batch) / cache.sets
    stays = poisson_below(WAYS, in_a_set)
    # Of the rows that a batch touches: the share whose last use lies between two ages.
    absent = frequencies.absent_before(np.concatenate(([0.0], age * batch)))
    used_then = -np.diff(absent, axis=1)
    middle = (np.concatenate(([1.0], stays[:-1])) + stays) / 2
    hits = np.cumsum(used_then * middle, axis=1)
    touched = frequencies.ids * -np.expm1(-frequencies.per_batch(batch))
    # At step n the oldest last use was n - 1 batches ago.
    known = np.concatenate((np.zeros((len(hits), 1)), hits), axis=1)[:, :-1]
    misses = touched @ (1.0 - known)
    full = cache.sets * mean_below(WAYS, in_a_set)
    return MissCurve(age, misses, full)


def step_grid(steps: int) -> Floats:
    """Whole numbers up to `steps`, ever further apart."""
    points = int(np.log2(max(steps, 2)) * _POINTS_PER_OCTAVE) + 2
    return np.unique(np.rint(np.geomspace(1, steps, points)))


def poisson_below(ways: int, mean: Floats) -> Floats:
    """P(a Poisson number is below `ways`)."""
    probability: Floats = _terms(ways, mean).sum(axis=0)
    return probability


def mean_below(ways: int, mean: Floats) -> Floats:
    """Mean of a Poisson number that is cut at `ways`."""
    terms = _terms(ways, mean)
    cut: Floats = np.arange(ways) @ terms + ways * (1.0 - terms.sum(axis=0))
    return cut


def _terms(ways: int, mean: Floats) -> Floats:
    """[number, mean] P(Poisson = number)."""
    numbers = np.arange(ways)
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, ways)))))
    logs = np.outer(numbers, np.log(np.maximum(mean, 1e-300))) - factorials[:, None] - mean
    terms: Floats = np.exp(logs)
    return terms
