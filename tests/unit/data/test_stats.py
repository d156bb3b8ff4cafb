"""`measure` against plain counting."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.core.errors import ConfigError, DataError
from megalith.core.schema import FeatureSpec
from megalith.data.dataset import DatasetSchema, Split, write_schema
from megalith.data.stats import measure, read_statistics, skew_of, write_statistics

ids = st.integers(min_value=0, max_value=19)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)
rows = st.lists(st.tuples(st.booleans(), finite, ids, st.lists(ids, max_size=4)), min_size=1, max_size=60)


def write(folder: Path, content: list[tuple[bool, float | None, int, list[int]]], num_ids: int = 20) -> None:
    """Two parts, so that counts must add up across files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, part in enumerate((content[: len(content) // 2], content[len(content) // 2 :])):
        labels, numbers, singles, bags = zip(*part, strict=True) if part else ((), (), (), ())
        table = pa.table(
            {
                "label": pa.array([float(label) for label in labels], pa.float32()),
                "number": pa.array(numbers, pa.float32()),
                "single": pa.array(singles, pa.int32()),
                "bag": pa.array(bags, pa.list_(pa.int32())),
            }
        )
        names.append(f"part-{number}.parquet")
        pq.write_table(table, folder / names[-1])
    features = (
        FeatureSpec(name="single", num_ids=num_ids),
        FeatureSpec(name="bag", num_ids=num_ids, max_length=None),
    )
    split = Split(rows=len(content), positives=sum(row[0] for row in content), files=tuple(names))
    write_schema(
        folder,
        DatasetSchema(source="test", numeric=("number",), categorical=features, splits={"train": split}),
    )


@settings(max_examples=40, deadline=None)
@given(content=rows)
def test_counts_are_those_of_a_counter(
    content: list[tuple[bool, float, int, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stats")
    write(folder, content)  # type: ignore[arg-type]
    found = measure(folder)
    assert found.rows == len(content)
    assert found.click_rate == pytest.approx(sum(row[0] for row in content) / len(content))
    columns = [[row[2] for row in content], [one for row in content for one in row[3]]]
    for feature, values in zip(found.features, columns, strict=True):
        counter = Counter(values)
        total = max(len(values), 1)
        assert feature.values == len(values)
        assert feature.missing_share == pytest.approx(counter.pop(0, 0) / total)
        assert feature.unknown_share == pytest.approx(counter.pop(1, 0) / total)
        assert feature.distinct_ids == len(counter)
        falling = sorted(counter.values(), reverse=True)
        assert feature.top_1_share == pytest.approx(sum(falling[:1]) / total)
        assert feature.top_10_share == pytest.approx(sum(falling[:10]) / total)
        assert feature.top_100_share == pytest.approx(sum(falling) / total)
        assert feature.seen_once_share == pytest.approx(falling.count(1) / max(len(falling), 1))
        hottest = sorted(Counter(values).values(), reverse=True)
        for share, needed in feature.rows_for_share.items():
            if values:
                assert sum(hottest[:needed]) >= float(share) * len(values) - 1e-9
                assert sum(hottest[: needed - 1]) < float(share) * len(values)
    bags = found.features[1]
    assert bags.max_length == max(len(row[3]) for row in content)
    assert bags.mean_length == pytest.approx(sum(len(row[3]) for row in content) / len(content))
    assert bags.empty_share == pytest.approx(sum(not row[3] for row in content) / len(content))


@settings(max_examples=40, deadline=None)
@given(content=rows)
def test_numbers_are_summed_up_right(
    content: list[tuple[bool, float, int, list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stats")
    write(folder, content)  # type: ignore[arg-type]
    number = measure(folder).numeric[0]
    values = np.array([row[1] for row in content], dtype=np.float32).astype(np.float64)
    scale = float(np.abs(values).max())
    assert number.zero_share == pytest.approx(float((values == 0).mean()))
    assert number.mean == pytest.approx(float(values.mean()), rel=1e-6, abs=scale * 1e-6)
    assert number.deviation == pytest.approx(float(values.std()), rel=1e-3, abs=scale * 1e-3)
    assert (number.minimum, number.maximum) == (values.min(), values.max())
    for share, value in number.quantiles.items():
        exact = float(np.quantile(values, float(share), method="inverted_cdf"))
        assert value == pytest.approx(exact, rel=1e-3, abs=1e-35)


def test_nulls_are_missing_values(tmp_path: Path) -> None:
    write(tmp_path, [(True, None, 5, []), (False, float("nan"), 0, [3]), (False, 2.0, 5, [3, 4])])
    found = measure(tmp_path)
    assert found.numeric[0].null_share == pytest.approx(2 / 3)
    assert found.numeric[0].mean == 2.0
    assert found.features[0].missing_share == pytest.approx(1 / 3)


def test_many_declared_ids_are_counted_like_few(tmp_path: Path) -> None:
    content: list[tuple[bool, float | None, int, list[int]]] = [(True, 1.0, 7, [7, 9]), (False, 2.0, 7, [])]
    write(tmp_path, content, num_ids=1_000_000)
    feature = measure(tmp_path).features[0]
    assert (feature.distinct_ids, feature.top_1_share, feature.num_ids) == (1, 1.0, 1_000_000)


def test_skew_is_the_exponent_of_a_power_law() -> None:
    counts = (1e6 * np.arange(1, 2000, dtype=np.float64) ** -1.2).astype(np.int64)
    assert skew_of(counts) == pytest.approx(1.2, abs=0.02)
    assert skew_of(counts[:3]) is None


def test_saved_statistics_are_read_back(tmp_path: Path) -> None:
    write(tmp_path, [(True, 1.0, 2, [3])])
    found = measure(tmp_path)
    with pytest.raises(DataError, match="stats"):
        read_statistics(tmp_path)
    write_statistics(tmp_path, found)
    assert read_statistics(tmp_path) == found
    content = json.loads((tmp_path / "statistics.json").read_text())
    (tmp_path / "statistics.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        read_statistics(tmp_path)


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    raw = tmp_path / "train.tsv"
    raw.write_text("1\t2\n")
    with pytest.raises(DataError, match=r"data prepare"):
        measure(raw)
    with pytest.raises(DataError, match=r"schema\.json"):
        measure(tmp_path)
    write(tmp_path, [(True, 1.0, 25, [3])])
    with pytest.raises(DataError, match=r"'single' holds id 25"):
        measure(tmp_path)
    with pytest.raises(ConfigError, match=r"no split 'tset'"):
        measure(tmp_path, "tset")
    (tmp_path / "part-0.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(DataError, match=r"part-0\.parquet is damaged"):
        measure(tmp_path)
