"""Lower bounds, held to what was found: one that is above it is wrong, and is said to be instead of hidden.

A bound and a value that are equal in theory may differ by the rounding of sums in another order; beyond that
a plan that beats its bound means that every gap and every plan ruled out by such bounds is in doubt.
"""

from __future__ import annotations

from megalith.core.errors import BoundError

ROUNDING = 1e-9
"""Relative; sums of some thousand doubles in another order differ by less."""


def checked_bound(bound: float, found: float, what: object, rounding: float = ROUNDING) -> float:
    """The bound, at most what was found where rounding alone tells them apart; BoundError beyond that.

    >>> checked_bound(1.0, 2.0, "a plan")
    1.0
    """
    if bound > found * (1 + rounding):
        raise BoundError(
            f"The lower bound of {what} is {bound:.12g} s, above the {found:.12g} s that was found, so the "
            "bound is wrong; please report it with the input, and trust no gap until it is fixed."
        )
    return min(bound, found)


def gap_to(bound: float, found: float) -> float:
    """The share of `found` that is left to gain, where nothing can be below `bound`.

    >>> gap_to(3.0, 4.0)
    0.25
    """
    return 1 - bound / found
