"""From how often ids occur in a sample to how often all ids occur: those that the sample missed too.

Counts of frequent ids are taken as they are. Below some count a sample tells single ids little, but two sums
it tells well: how many accesses rare ids have together, and how many of them it has seen. Rare ids, seen or
not, are given frequencies that go on from the frequent ones by a power of the rank,

    accesses(k) = edge * (1 + k / frequent ids) ** -s        k = 1 ... rare ids

with s and the number of rare ids such that both sums come out: accesses(k) add up to those counted, and
1 - exp(-accesses(k)) to the ids seen. There are never more ids than the table has rows. Good and Turing's
estimate, that unseen ids have as many accesses as there are ids seen once, follows for such a curve.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from megalith.cost.row_cache.frequencies import AccessFrequencies, Floats, from_counts, merge_frequencies

_EDGES = (12, 6)
"""Counts from which an id is frequent; smaller ones say more of chance than of the id."""
_ENOUGH = 16
"""Frequent ids, at least, from which a curve can go on."""
_CLASSES = 192
_MAX_EXPONENT = 30.0


def with_unseen_ids(counts: NDArray[np.integer], samples: float, num_ids: int) -> AccessFrequencies:
    """Frequencies of up to `num_ids` ids, of which a sample had some so many times."""
    counts = counts[counts > 0]
    edge = next((edge for edge in _EDGES if int((counts >= edge).sum()) >= _ENOUGH), None)
    if edge is None:
        return _even(counts, samples, num_ids)
    frequent, rare = counts[counts >= edge], counts[counts < edge]
    head = from_counts(frequent, samples)
    most = float(num_ids - len(frequent))
    if not len(rare) or most < 1:
        return head
    ids, accesses = _curve(float(edge), float(len(frequent)), float(rare.sum()), float(len(rare)), most)
    return merge_frequencies([head, AccessFrequencies(ids, accesses, samples)])


def _curve(edge: float, frequent: float, total: float, seen: float, most: float) -> tuple[Floats, Floats]:
    """(ids, accesses of each) of classes of rare ids, with both sums."""

    def rare_ids(number: float) -> tuple[Floats, Floats]:
        ends = np.concatenate(([0.0], np.geomspace(min(1.0, number / 2), number, _CLASSES)))
        ids, rank = np.diff(ends), (ends[:-1] + ends[1:]) / 2
        falls = np.log1p(rank / frequent)
        exponent = _root(
            lambda s: float(ids @ np.exp(-s * falls)) * edge - total, -_MAX_EXPONENT, _MAX_EXPONENT
        )
        # Classes are wide and the bounds are finite: what is left of the sum is spread evenly.
        accesses = edge * np.exp(-exponent * falls)
        return ids, accesses * (total / float(ids @ accesses))

    def unseen(log_number: float) -> float:
        ids, accesses = rare_ids(float(np.exp(log_number)))
        return seen + float(ids @ np.expm1(-accesses))

    low = np.log(min(max(seen, total / edge), most))
    return rare_ids(float(np.exp(_root(unseen, float(low), float(np.log(most))))))


def _even(counts: NDArray[np.integer], samples: float, num_ids: int) -> AccessFrequencies:
    """Too few ids come again for a curve: all alike, as many as make the ids that were seen likely."""
    total, seen = float(counts.sum()), float(len(counts))
    if not total:
        return AccessFrequencies(np.zeros(0), np.zeros(0), samples)
    number = np.exp(
        _root(
            lambda log: seen + float(np.exp(log) * np.expm1(-total / np.exp(log))),
            float(np.log(seen)),
            float(np.log(max(num_ids, seen))),
        )
    )
    return AccessFrequencies(np.array([number]), np.array([total / number]), samples)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is 0, or the end that comes nearest."""
    for _ in range(60):
        middle = (low + high) / 2
        if falling(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
