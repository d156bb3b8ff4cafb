"""Numbers as people read and write them."""

import doctest

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
