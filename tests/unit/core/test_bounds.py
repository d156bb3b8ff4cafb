"""Bounds that hold pass as they are; one above what was found is named with its numbers."""

from __future__ import annotations

import pytest

from megalith.core.bounds import ROUNDING, checked_bound, gap_to
from megalith.core.errors import BoundError


def test_a_bound_that_holds_is_passed_on() -> None:
    assert checked_bound(0.75, 1.0, "a plan") == 0.75
    assert checked_bound(1.0, float("inf"), "a plan that cannot run") == 1.0


def test_rounding_alone_never_makes_a_gap_negative() -> None:
    bound = checked_bound(1 + ROUNDING / 2, 1.0, "a plan")
    assert gap_to(bound, 1.0) == 0


def test_a_bound_above_what_was_found_is_said_with_its_numbers() -> None:
    with pytest.raises(BoundError, match=r"of plan A is 1\.001 s, above the 1 s that was found"):
        checked_bound(1.001, 1.0, "plan A")
