"""Traffic of tables: by Zipf's law, from measured data, from batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.core.schema import TableSpec
from megalith.data.stats import FeatureStatistics, Statistics
from megalith.sharding.planner.statistics import (
    default_statistics,
    from_batches,
    from_dataset,
    zipf_statistics,
)


def table(rows: int, *features: str) -> TableSpec:
    return TableSpec(name="t", rows=rows, dim=8, features=features or ("f",))


def zipf_ids(rows: int, skew: float, count: int) -> np.ndarray:
    shares = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    return np.random.default_rng(0).choice(rows, count, p=shares / shares.sum())


@given(st.integers(1, 10**7), st.floats(0, 2), st.integers(1, 64), st.floats(0, 1))
def test_cuts_rise_and_cover_the_table(rows: int, skew: float, parts: int, weight: float) -> None:
    cuts = zipf_statistics(rows, 1.0, skew).even_cut(parts, weight)
    assert cuts[0] == 0
    assert cuts[-1] == rows
    steps = np.diff(cuts)
    assert (steps >= (1 if rows >= parts else 0)).all()


def test_zipf_shares_are_those_of_the_law() -> None:
    law = np.arange(1, 1_000_001, dtype=np.float64) ** -1.05
    law = np.cumsum(law) / law.sum()
    found = zipf_statistics(1_000_000, 1.0, 1.05)
    for rows in (1, 10, 10_000, 1_000_000):
        assert found.hot_share(rows) == pytest.approx(law[rows - 1], rel=0.05)


def test_distinct_rows_are_those_a_batch_holds() -> None:
    ids = zipf_ids(50_000, 1.1, 20_000)
    found = zipf_statistics(50_000, 1.0, 1.1)
    assert found.distinct_before(np.array([50_000.0]), 20_000)[0] == pytest.approx(
        len(np.unique(ids)), rel=0.05
    )
    first = found.distinct_before(np.array([1000.0]), 20_000)[0]
    assert first == pytest.approx(len(np.unique(ids[ids < 1000])), rel=0.05)


def test_spread_rows_weigh_alike() -> None:
    found = zipf_statistics(1000, 1.0, 1.3, hot_first=False)
    assert found.share_before(np.array([250.0]))[0] == 0.25
    assert found.even_cut(4, 0.9).tolist() == [0, 250, 500, 750, 1000]


def test_batches_show_lengths_and_hot_rows() -> None:
    ids = zipf_ids(10_000, 1.2, 30_000)
    offsets = np.arange(0, 30_001, 3)
    found = from_batches([table(10_000)], [(ids, offsets)])["t"]
    assert found.lookups == 3
    assert found.hot_first
    law = zipf_statistics(10_000, 3.0, 1.2)
    assert found.hot_share(10) == pytest.approx(law.hot_share(10), abs=0.05)
    shuffled = np.random.default_rng(1).permutation(10_000)[ids]
    assert not from_batches([table(10_000)], [(shuffled, offsets)])["t"].hot_first


def test_features_of_one_table_add_up() -> None:
    values, offsets = np.array([0, 1, 2, 3, 3]), np.array([0, 1, 2, 4, 5])
    found = from_batches([table(10, "a", "b")], [(values, offsets)])["t"]
    assert found.lookups == 2.5
    assert default_statistics(table(10, "a", "b"), {"a": 4.0}).lookups == 5


def test_measured_statistics_are_used() -> None:
    feature = FeatureStatistics(
        name="f",
        num_ids=1002,
        values=10_000,
        mean_length=2.5,
        max_length=9,
        empty_share=0.0,
        missing_share=0.1,
        unknown_share=0.0,
        distinct_ids=900,
        top_1_share=0.2,
        top_10_share=0.5,
        top_100_share=0.8,
        seen_once_share=0.1,
        skew=1.1,
        rows_for_share={"0.5": 4, "0.9": 150, "0.99": 600},
    )
    statistics = Statistics(
        source="x",
        split="train",
        rows=4000,
        click_rate=0.2,
        best_log_loss=None,
        features=(feature,),
        numeric=(),
    )
    found = from_dataset(
        [
            table(1002),
        ],
        statistics,
    )["t"]
    assert found.lookups == 2.5
    assert found.hot_share(4) == pytest.approx(0.5, abs=0.05)
    assert found.hot_share(150) == pytest.approx(0.9, abs=0.03)
    assert found.hot_share(1002) == 1
    assert np.all(np.diff(found.shares) >= 0)
