"""Exact means and thresholds: of any order and number of ranks, within the budget."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError
from megalith.ops.chunks.ranking import HISTOGRAM_SIZE, threshold
from megalith.ops.chunks.ranking_sums import SUM_NUMBERS, RankingSettings, exact_mean, ranking_means


def summed(numbers):
    """Numbers by exponent, as the native core sums them."""
    sums = torch.zeros(SUM_NUMBERS, dtype=torch.int64)
    for bits in torch.tensor(numbers, dtype=torch.float32).view(torch.int32).tolist():
        exponent = bits >> 23
        sums[0] += 1
        sums[1 + exponent] += bits & 0x7FFFFF | bool(exponent) << 23
    return sums


@given(st.lists(st.floats(0, 3.4028234663852886e38, width=32), min_size=1, max_size=50), st.integers(0, 50))
@settings(deadline=None, max_examples=100)
def test_a_mean_is_exact_however_its_numbers_are_cut(numbers, cut):
    parts = [summed(part) for part in (numbers[:cut], numbers[cut:])]
    mean = exact_mean((parts[0] + parts[1]).tolist())
    expected = torch.tensor(math.fsum(numbers) / len(numbers), dtype=torch.float64).float().item()
    assert mean == pytest.approx(expected, rel=1e-7, abs=1e-45)
    assert mean == exact_mean(summed(numbers[::-1]).tolist())


def test_a_table_without_numbers_has_the_mean_of_all():
    empty = torch.zeros(SUM_NUMBERS, dtype=torch.int64)
    total = torch.stack([summed([1.0, 3.0]), empty, summed([0.0, 0.0])])
    assert ranking_means(total).tolist() == [2.0, 1.0, 1.0]
    assert ranking_means(total[1:2]).tolist() == [1.0]
    assert ranking_means(total[:0]).shape == (0,)


@given(
    st.lists(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 100)), max_size=30),
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(-10, 3000),
)
@settings(deadline=None, max_examples=100)
def test_a_threshold_is_the_lowest_key_that_fits(spread, close, budget):
    """Some keys far apart, some that differ in their last bits."""
    chunks = [*spread, *((7 << 32 | 9 << 16 | low, 10) for low in close)]

    def histogram(level, prefix):
        counted = torch.zeros(HISTOGRAM_SIZE, dtype=torch.int64)
        for key, cost in chunks:
            if level == 0 or key >> 48 - 16 * level == prefix:
                counted[key >> 32 - 16 * level & 0xFFFF] += cost
        return counted

    key = threshold(histogram, budget)

    def taken(least):
        return sum(cost for own, cost in chunks if own >= least)

    assert taken(key) <= max(budget, 0)
    if key:
        assert taken(key - 1) > budget
    else:
        assert taken(0) <= budget


def test_settings_that_cannot_be_are_refused():
    numbers = (
        ("floor", 0.0),
        ("hysteresis", -1.0),
        ("power", -1.0),
        ("columns", math.inf),
        ("power", math.nan),
    )
    for name, number in numbers:
        with pytest.raises(ConfigError, match=name):
            RankingSettings(**{name: number})
    with pytest.raises(ConfigError, match="columns"):
        RankingSettings(columns=1e-9, power=8).factors(64, 1)
    factors = RankingSettings(columns=4, power=1.5).factors(3, 4)
    assert factors.tolist() == pytest.approx([1, 2**1.5, 3**1.5])
