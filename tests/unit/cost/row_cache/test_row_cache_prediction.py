"""What is predicted of a run over a row cache, against real pools."""

import numpy as np
import pytest
from cached_runs import ROWS, SKEWS, CachedRun

from megalith.core.errors import ConfigError
from megalith.cost.row_cache.frequencies import from_counts, merge_frequencies, zipf_frequencies
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.lru import lru_misses
from megalith.cost.row_cache.prediction import predict_cache, steady_hit_rate, trained_before
from megalith.cost.row_cache.sampled_sets import sampled_misses

POLICIES = (("lru", 0), ("lfu", 0), ("lookahead", 6))


def geometry(run):
    return CacheGeometry(run.capacity, run.policy, run.window, overflow=run.overflow)


def predict(run, frequencies):
    return predict_cache(frequencies, geometry(run), row_bytes=4 * run.dim, batch=run.batch, steps=run.steps)


def test_one_of_the_skews_is_as_flat_as_gowalla():
    shares = {name: zipf_frequencies(ROWS, 1.0, skew).share_of_hottest(0.01) for name, skew in SKEWS.items()}
    assert shares["criteo"] > 0.85
    assert 0.3 < shares["middle"] < 0.6
    assert abs(shares["gowalla"] - 0.13) < 0.01


@pytest.mark.parametrize("capacity", [6_000, 40_000])
@pytest.mark.parametrize(("policy", "window"), POLICIES)
@pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)
def test_hits_reads_and_writes_are_those_of_a_real_pool(skew, policy, window, capacity, tmp_path):
    run = CachedRun(skew, capacity, policy, window)
    early, end = run.run(tmp_path)
    predicted = predict(run, zipf_frequencies(run.rows, 1.0, skew))
    samples = run.batch * run.steps
    # The promise is 0.05.
    assert abs(predicted.hit_rate - end.hits / end.lookups) < 0.01
    late = (end.hits - early.hits) / (end.lookups - early.lookups)
    assert abs(predicted.late.hit_rate - late) < 0.02
    assert abs(predicted.run.read_rows / run.batch - end.read_rows / samples) < 0.01
    assert abs(predicted.run.evicted_rows / run.batch - end.written_back_rows / samples) < 0.01
    assert abs(predicted.touched_rows / end.present_rows - 1) < 0.01


@pytest.mark.parametrize("window", [32, 100])
@pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)
def test_a_window_of_more_rows_than_the_cache_is_predicted(skew, window, tmp_path):
    run = CachedRun(skew, 6_000, "lookahead", window)
    _, end = run.run(tmp_path)
    predicted = predict(run, zipf_frequencies(run.rows, 1.0, skew))
    assert abs(predicted.hit_rate - end.hits / end.lookups) < 0.01
    assert abs(predicted.run.read_rows / run.batch - end.read_rows / (run.batch * run.steps)) < 0.01


def test_bytes_on_disk_are_those_of_a_real_pool(tmp_path):
    for skew in (0.56, 0.9):
        run = CachedRun(skew, 20_000, "lfu", dim=64, rows=60_000)
        folder = tmp_path / str(skew)
        folder.mkdir()
        early, end = run.run(folder)
        predicted = predict(run, zipf_frequencies(run.rows, 1.0, skew))
        assert 0.8 < predicted.disk_bytes / end.file_bytes < 1.2
        moved = end.moved_rows - early.moved_rows
        evicted = end.written_back_rows - early.written_back_rows
        # Rows that are alike are the worst case of collection; skewed ones move less.
        assert moved / evicted < predicted.late.moved_rows / predicted.late.evicted_rows + 0.1


@pytest.mark.parametrize("skew", SKEWS.values(), ids=SKEWS)
def test_the_closed_form_of_lru_agrees_with_sampled_sets(skew):
    frequencies = zipf_frequencies(50_000_000, 26.0, skew)
    cache = CacheGeometry(2_000_000)
    lookups = 26 * 2048 * 3000
    closed, sampled = (model(frequencies, cache, 2048, 3000) for model in (lru_misses, sampled_misses))
    assert abs(closed.sum_to(3000) - sampled.sum_to(3000)) / lookups < 0.02
    assert abs(closed.cached_at(3000) / sampled.cached_at(3000) - 1) < 0.02


@pytest.mark.parametrize("model", [lru_misses, sampled_misses])
def test_an_epoch_over_ids_that_occur_once_reads_nothing(model):
    counts = np.ones(50_000, dtype=np.int64)
    cache = CacheGeometry(8_000)
    run = model(from_counts(counts, 50_000, whole=True), cache, 500, 100)
    assert run.sum_to(100) == pytest.approx(50_000, rel=0.01)
    # As a stream the same frequencies would have ids come again.
    assert model(from_counts(counts, 50_000), cache, 500, 100).sum_to(100) < 49_500


def test_a_second_epoch_reads_what_the_cache_could_not_keep():
    frequencies = from_counts(np.ones(50_000, dtype=np.int64), 50_000, whole=True)
    for policy in ("lru", "lfu"):
        predicted = predict_cache(
            frequencies, CacheGeometry(8_000, policy), row_bytes=16, batch=500, steps=200
        )
        assert predicted.touched_rows == pytest.approx(50_000)
        assert predicted.run.read_rows * 200 == pytest.approx(50_000, rel=0.2)


def test_a_cache_with_room_for_all_rows_reads_nothing():
    predicted = predict_cache(
        zipf_frequencies(20_000, 4.0, 1.0), CacheGeometry(60_000, "lfu"), row_bytes=260, batch=512, steps=500
    )
    assert predicted.run.read_rows < 0.001 * predicted.run.lookups
    assert predicted.run.evicted_rows < 0.001 * predicted.run.lookups
    assert predicted.disk_bytes < 1.2 * predicted.touched_rows * 260


def test_a_longer_run_comes_near_the_steady_hit_rate():
    frequencies, cache = zipf_frequencies(300_000, 2.0, 0.9), CacheGeometry(30_000)
    steady = steady_hit_rate(frequencies, cache, 1024)
    short, long = (
        predict_cache(frequencies, cache, row_bytes=16, batch=1024, steps=steps).late.hit_rate
        for steps in (20, 20_000)
    )
    assert abs(long - steady) < 0.002
    assert short < steady - 0.05


def test_a_billion_ids_take_a_few_hundred_numbers():
    frequencies = zipf_frequencies(1_000_000_000, 26.0, 1.05)
    assert len(frequencies.ids) < 1000
    assert frequencies.num_ids == 1_000_000_000
    assert frequencies.lookups_per_sample == pytest.approx(26.0)
    predicted = predict_cache(
        frequencies, CacheGeometry(16_000_000, "lookahead", 4), row_bytes=260, batch=4096, steps=10_000
    )
    assert 0.5 < predicted.hit_rate < 1.0


def test_counts_become_classes_and_tables_join():
    generator = np.random.default_rng(1)
    counts = generator.zipf(1.3, 100_000).clip(max=10**7)
    frequencies = from_counts(counts, 5000)
    assert frequencies.num_ids == len(counts)
    assert frequencies.ids @ frequencies.accesses == pytest.approx(counts.sum())
    both = merge_frequencies([frequencies, zipf_frequencies(100, 3.0, 1.0)])
    assert both.lookups_per_sample == pytest.approx(frequencies.lookups_per_sample + 3.0)


@pytest.mark.parametrize("policy", ["lru", "lookahead"])
def test_tables_that_nothing_accesses_miss_nothing(policy):
    empty = from_counts(np.zeros(5, dtype=np.int64), 100)
    cache = CacheGeometry.of_bytes(2600, 260, policy)
    assert cache.capacity == 10
    predicted = predict_cache(empty, cache, row_bytes=260, batch=8, steps=10)
    assert (predicted.hit_rate, predicted.touched_rows) == (1.0, 0.0)
    assert predicted.disk_bytes < 1
    assert steady_hit_rate(empty, cache, 8) == 1.0


def test_an_unknown_policy_is_named():
    with pytest.raises(ConfigError, match="Unknown cache policy 'fifo'"):
        predict_cache(
            zipf_frequencies(10, 1.0, 1.0), CacheGeometry(10, "fifo"), row_bytes=4, batch=1, steps=1
        )


@pytest.mark.parametrize("steps", [40, 400])
def test_a_run_over_rows_that_were_trained_before_reads_all_that_it_misses(steps, tmp_path):
    run = CachedRun(0.9, 40_000, "lookahead", 4, steps=steps)
    _, untrained = run.run(tmp_path / "new")
    _, end = run.run(tmp_path / "trained", trained=True)
    frequencies = zipf_frequencies(run.rows, 1.0, run.skew)
    found = predict(run, frequencies)
    full = trained_before(found, frequencies, geometry(run), 4 * run.dim)
    assert end.new_rows == 0
    # What is left of before is that at the end of the run.
    assert abs(full.hit_rate - end.hits / end.lookups) < 0.03
    # Rows that happen to be in the cache: more hits than over rows that are new.
    assert end.hits > untrained.hits
    assert full.hit_rate > found.hit_rate
    assert full.run.read_rows == full.run.misses
