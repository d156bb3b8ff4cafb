"""The time of a step over a row cache, and what bounds it."""

from dataclasses import replace

import pytest

from megalith.cost.row_cache.frequencies import zipf_frequencies
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache
from megalith.cost.row_cache.step_time import ResolveCosts, predict_tier
from megalith.hardware.disk import DiskSpeed

DISK = DiskSpeed("io_uring", 60_000, 2e9, 1e9, 0.0)
FREE = ResolveCosts(0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def flat():
    return predict_cache(
        zipf_frequencies(5_000_000, 4.0, 0.56), CacheGeometry(200_000), row_bytes=260, batch=1024, steps=4000
    )


def test_a_slow_disk_bounds_the_step(flat):
    tier = predict_tier(flat, 0.001, replace(DISK, reads_per_second=1e4), cores=2, costs=FREE)
    assert tier.bound_by == "disk reads"
    assert tier.step_seconds == pytest.approx(tier.disk_seconds, rel=1e-3)
    assert tier.step_seconds > flat.run.disk_reads / 1e4


def test_slow_writes_bound_the_step(flat):
    tier = predict_tier(flat, 0.001, replace(DISK, write_bytes_per_second=1e6), cores=2, costs=FREE)
    assert tier.bound_by == "disk writes"


def test_a_pipeline_hides_the_disk_behind_the_computation(flat):
    tier = predict_tier(flat, 10.0, DISK, cores=2, costs=FREE)
    assert tier.bound_by == "compute"
    assert tier.step_seconds == pytest.approx(10.0)
    assert tier.rate_of_memory == pytest.approx(1.0)
    alone = predict_tier(flat, 10.0, DISK, cores=2, costs=FREE, pipelined=False)
    assert alone.step_seconds == pytest.approx(10.0 + alone.disk_seconds)


def test_finding_rows_takes_cores_from_the_computation(flat):
    costs = replace(FREE, per_lookup=1e-5)
    tier = predict_tier(flat, 1.0, DISK, cores=4, costs=costs)
    assert tier.resolve_seconds == pytest.approx(4 * 1024 * 1e-5)
    assert tier.step_seconds == pytest.approx(1.0 + tier.resolve_seconds / 4, rel=1e-3)
    assert predict_tier(flat, 1e-6, DISK, cores=4, costs=replace(FREE, per_lookup=1e-3)).bound_by == "resolve"


def test_starting_reads_takes_cores_from_the_computation(flat):
    tier = predict_tier(flat, 1.0, replace(DISK, read_processor_seconds=3e-6), cores=2, costs=FREE)
    assert tier.step_seconds == pytest.approx(1.0 + flat.run.disk_reads * 3e-6 / 2, rel=1e-3)


def test_reads_hide_the_search_for_rows(flat):
    tier = predict_tier(flat, 1e-6, DISK, cores=2, costs=replace(FREE, per_lookup=1e-6))
    assert 0 < tier.resolve_seconds < tier.disk_seconds
    assert tier.step_seconds == pytest.approx(tier.disk_seconds, rel=0.01)


def test_taking_what_was_read_may_be_slower_than_the_disk(flat):
    tier = predict_tier(flat, 1e-6, replace(DISK, read_processor_seconds=1e-3), cores=2, costs=FREE)
    assert tier.bound_by == "read"
    assert tier.read_seconds == pytest.approx(flat.run.disk_reads * 1e-3)
    assert tier.step_seconds > tier.read_seconds


def test_cores_and_a_disk_that_are_both_full_wait_for_each_other(flat):
    alone = predict_tier(flat, 1e-6, DISK, cores=2, costs=FREE)
    both = predict_tier(flat, alone.step_seconds, DISK, cores=2, costs=FREE)
    assert both.step_seconds == pytest.approx(2 ** (1 / 3) * alone.step_seconds, rel=1e-3)


def test_a_disk_that_varies_gives_a_range(flat):
    disk = replace(DISK, reads_range=(3e4, 12e4))
    tier = predict_tier(flat, 0.001, disk, cores=2, costs=FREE)
    quick, slow = tier.step_seconds_range
    assert quick < tier.step_seconds < slow
    assert (
        slow
        == predict_tier(flat, 0.001, replace(DISK, reads_per_second=3e4), cores=2, costs=FREE).step_seconds
    )
    assert f"{quick * 1e3:,.1f} to {slow * 1e3:,.1f} as the disk varies" in str(tier)
    assert predict_tier(flat, 0.001, DISK, cores=2, costs=FREE).step_seconds_range is None


def test_the_sentence_says_hits_reads_time_and_what_bounds_it(flat):
    text = str(predict_tier(flat, 0.001, DISK, cores=2, costs=FREE))
    assert f"Cache hits {flat.hit_rate:.1%}" in text
    assert "disk reads a sample" in text
    assert "bound by disk reads" in text
    assert "\n" not in text


def test_the_end_of_a_run_may_be_slower_than_its_beginning(flat):
    whole, end = (predict_tier(flat, 1e-6, DISK, cores=2, late=late) for late in (False, True))
    assert end.reads_per_sample > whole.reads_per_sample
    assert end.step_seconds > whole.step_seconds
