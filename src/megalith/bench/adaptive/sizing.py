"""Sizes by weights alone: by how much all bytes must shrink for the weights to shrink by what is asked.

Published figures count weights and leave out state, index and bookkeeping. Methods that are built at their
size tell their weights before they train; those that shrink in training are run with the first seed until
their weights are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CLOSE = 0.02
"""How far weights may be from what is asked, as a part of it."""
_MOST_TRIES = 6

SizeOf = Callable[[float], Mapping[str, Any] | None]
"""The record of a run, or of a size, at a ratio of all bytes; None where there is no time for it."""


def sized_ratio(asked: float, size_of: SizeOf, begin: float | None = None) -> float | None:
    """The ratio of all bytes at which weights shrink by about `asked`; None where there is no time.

    Of the ratios that were tried it is the one whose weights come nearest; the first is `begin`, or `asked`.
    """
    ratio, tried = asked if begin is None else begin, list[tuple[float, float]]()
    for _ in range(_MOST_TRIES):
        record = size_of(ratio)
        if record is None:
            return None
        if "infeasible" in record:
            return min(tried)[1] if tried else ratio
        real = record["dense_weight_bytes"] / max(1, record["bytes"]["weights"])
        error = asked / real - 1
        tried.append((abs(error), ratio))
        if abs(error) <= CLOSE:
            break
        ratio = max(1.0, ratio * asked / real)
    return min(tried)[1]
