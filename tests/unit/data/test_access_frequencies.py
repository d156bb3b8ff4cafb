"""How often ids are accessed: counted, sampled, and with the ids that a sample missed."""

from pathlib import Path

import numpy as np
import pytest

from megalith.core.schema import TableSpec
from megalith.cost.row_cache.frequencies import from_counts, zipf_frequencies
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache
from megalith.data.access_frequencies import cache_frequencies, sample_frequencies, table_frequencies
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.data.stats import measure, write_statistics
from megalith.data.synth.generate import generate
from megalith.data.synth.options import SynthOptions
from megalith.data.unseen_ids import with_unseen_ids


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Criteo's own numbers of ids over few rows: most ids of a sample are new."""
    folder = tmp_path_factory.mktemp("synth") / "criteo"
    generate(SynthOptions("criteo", train_rows=40_000, valid_rows=5_000, scale=1.0), folder, threads=2)
    return folder


def tables_of(dataset):
    return [
        TableSpec(name=feature.name, rows=feature.num_ids, dim=8, features=(feature.name,))
        for feature in dataset.schema.categorical
    ]


def counted(dataset, feature):
    """Counts of the ids of a feature, from all batches."""
    loader = Loader(dataset, batch_size=1000, epochs=1, shuffle=False)
    number = list(dataset.schema.feature_names).index(feature)
    ids = [
        batch.values[batch.offsets[number * 1000] : batch.offsets[(number + 1) * 1000]] for batch in loader
    ]
    return np.bincount(np.concatenate(ids))


def predicted(frequencies, capacity, policy="lfu", batch=256, steps=150):
    cache = CacheGeometry(capacity, policy)
    return predict_cache(frequencies, cache, row_bytes=36, batch=batch, steps=steps)


@pytest.mark.parametrize("skew", [1.2, 0.9, 0.56, 0.0])
def test_a_sample_tells_hits_of_a_run_eighty_times_longer(skew):
    rows, samples = 500_000, 50_000
    shares = np.cumsum(np.arange(1.0, rows + 1) ** -skew)
    ids = np.searchsorted(shares, np.random.default_rng(3).random(samples) * shares[-1])
    counts = np.bincount(ids)
    truth = zipf_frequencies(rows, 1.0, skew)
    for capacity in (20_000, 60_000):
        real, estimated, naive = (
            predicted(frequencies, capacity, "lru", 4096, 1000)
            for frequencies in (truth, with_unseen_ids(counts, samples, rows), from_counts(counts, samples))
        )
        assert abs(estimated.hit_rate - real.hit_rate) < 0.05
        assert 0.8 < estimated.touched_rows / real.touched_rows < 1.2
        assert abs(naive.hit_rate - real.hit_rate) > abs(estimated.hit_rate - real.hit_rate)


def test_both_sums_of_rare_ids_come_out():
    generator = np.random.default_rng(5)
    counts = generator.poisson(generator.pareto(1.1, 200_000) * 0.5)
    estimated = with_unseen_ids(counts, 1000, 10_000_000)
    assert estimated.ids @ estimated.accesses == pytest.approx(counts.sum(), rel=1e-6)
    assert float(estimated.distinct(1000)) == pytest.approx((counts > 0).sum(), rel=0.01)
    assert estimated.num_ids > 1.2 * (counts > 0).sum()


def test_there_are_never_more_ids_than_rows():
    counts = np.bincount(np.random.default_rng(0).integers(0, 1000, 700))
    assert with_unseen_ids(counts, 700, 1000).num_ids <= 1000.5
    assert with_unseen_ids(np.ones(50, dtype=np.int64), 50, 50).num_ids == pytest.approx(50)
    assert with_unseen_ids(np.zeros(9, dtype=np.int64), 50, 9).num_ids == 0


def test_statistics_keep_how_many_ids_occur_how_often(data):
    statistics = measure(data)
    by_name = {feature.name: feature for feature in statistics.features}
    dataset = Dataset(data)
    for name in list(by_name)[:5]:
        counts = counted(dataset, name)
        classes = from_counts(counts[counts > 0], 40_000)
        expected = list(zip(classes.ids, classes.accesses, strict=True))
        assert np.allclose(by_name[name].ids_by_count, expected)


def test_statistics_are_used_where_they_are_and_a_sample_where_not(data, tmp_path):
    dataset = Dataset(data)
    tables = tables_of(dataset)
    names = [table.name for table in tables]
    sampled = cache_frequencies(table_frequencies(dataset, tables, max_values=26 * 8000), names)
    counted_now = cache_frequencies(table_frequencies(dataset, tables), names)
    write_statistics(data, measure(data))
    try:
        saved = cache_frequencies(table_frequencies(dataset, tables, max_values=1), names)
    finally:
        (data / "statistics.json").unlink()
    assert saved.num_ids == counted_now.num_ids
    assert saved.whole
    assert counted_now.whole
    assert sampled.lookups_per_sample == pytest.approx(26, rel=1e-6)
    for capacity in (10_000, 40_000):
        estimate, truth = predicted(sampled, capacity), predicted(saved, capacity)
        assert abs(estimate.hit_rate - truth.hit_rate) < 0.03
        assert 0.7 < estimate.touched_rows / truth.touched_rows < 1.3


def test_features_that_share_a_table_are_counted_together(data):
    dataset = Dataset(data)
    first, second = dataset.schema.feature_names[:2]
    rows = max(feature.num_ids for feature in dataset.schema.categorical)
    both = [
        TableSpec(name="both", rows=rows, dim=8, features=(first, second)),
        TableSpec(name="first", rows=rows, dim=8, features=(first,)),
    ]
    found = table_frequencies(dataset, both)
    own, other = counted(dataset, first), counted(dataset, second)
    together = np.zeros(max(len(own), len(other)))
    together[: len(own)] += own
    together[: len(other)] += other
    assert found["both"].num_ids == (together > 0).sum()
    assert found["both"].lookups_per_sample == pytest.approx(2)
    assert found["first"].num_ids == (own > 0).sum()


def test_padding_is_no_access(data):
    dataset = Dataset(data)
    name = dataset.schema.feature_names[0]
    counts = counted(dataset, name)
    padded = int(counts.argmax())
    table = TableSpec(name="t", rows=len(counts), dim=8, features=(name,), padding_index=padded)
    batches = Loader(dataset, batch_size=1000, epochs=1)
    found = sample_frequencies(batches, dataset.schema.feature_names, [table], rows=40_000)["t"]
    assert found.ids @ found.accesses == pytest.approx(counts.sum() - counts[padded])


def test_ranges_of_rows_have_the_accesses_of_their_own_ids(data):
    dataset = Dataset(data)
    whole = next(table for table in tables_of(dataset) if table.name == "C3")
    first = whole.model_copy(update={"name": "first", "rows": 1000})
    rest = whole.model_copy(update={"name": "rest", "rows": whole.rows - 1000})
    ranges = {"first": (0, 1000), "rest": (1000, whole.rows)}
    parts = table_frequencies(dataset, [first, rest], ranges=ranges)
    counts = counted(dataset, "C3")
    for name, own in (("first", counts[:1000]), ("rest", counts[1000:])):
        assert parts[name].num_ids == (own > 0).sum()
        assert parts[name].lookups_per_sample * 40_000 == pytest.approx(own.sum())


def test_splits_that_are_read_together_are_counted_together(data):
    dataset = Dataset(data)
    splits = ("train", "valid")
    rows = sum(dataset.split(split).rows for split in splits)
    table = next(table for table in tables_of(dataset) if table.name == "C3")
    found = table_frequencies(dataset, [table], splits)["C3"]
    ids = []
    for split in splits:
        for batch in Loader(dataset, (split,), batch_size=500, epochs=1, shuffle=False, drop_last=False):
            number = list(dataset.schema.feature_names).index("C3") * batch.batch_size
            ids.append(batch.values[batch.offsets[number] : batch.offsets[number + batch.batch_size]])
    counts = np.bincount(np.concatenate(ids))
    assert rows > 40_000
    assert found.num_ids == (counts > 0).sum()
    assert found.lookups_per_sample * rows == pytest.approx(counts.sum())
