"""Numbers as people read and write them."""

import doctest
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core import config, errors, units
from megalith.core.errors import ConfigError


@pytest.mark.parametrize("module", [units, config, errors])
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@given(st.integers(0, 2**50))
def test_a_size_reads_back(count):
    assert units.parse_bytes(str(count)) == count


def test_a_size_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="512M"):
        units.parse_bytes("lots")


@given(st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=6))
def test_parts_add_up_as_they_are_shown(seconds):
    named = {str(number): value for number, value in enumerate(seconds)}
    total, parts = units.format_parts(named)
    amount, unit = total.split()
    assert sum(Decimal(part.split()[0]) for part in parts.values()) == Decimal(amount)
    assert {part.split()[1] for part in parts.values()} == {unit}
    size = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
    last_digit = 10.0 ** Decimal(amount).as_tuple().exponent
    for name, part in parts.items():
        assert abs(float(part.split()[0]) - named[name] * size) <= last_digit * 1.001
