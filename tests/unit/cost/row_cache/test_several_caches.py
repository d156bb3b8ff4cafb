"""Caches of one process, and ranks of one run, added up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megalith.cost.row_cache.frequencies import AccessFrequencies
from megalith.cost.row_cache.geometry import CacheGeometry
from megalith.cost.row_cache.prediction import predict_cache
from megalith.cost.row_cache.several import add_caches, add_ranks
from megalith.cost.row_cache.step_time import predict_tier
from megalith.hardware.disk import DiskSpeed

DISK = DiskSpeed("io_uring", 50_000, 1e9, 1e9, 5e-6)


def cache(rows: int, row_bytes: int = 96):
    frequencies = AccessFrequencies(np.array([500.0, 90_000.0]), np.array([200.0, 1.5]), 100_000.0)
    return predict_cache(frequencies, CacheGeometry(rows), row_bytes=row_bytes, batch=512, steps=150)


def test_what_two_caches_move_is_moved_by_both() -> None:
    small, large = cache(8_000), cache(40_000, row_bytes=260)
    both = add_caches([small, large])
    for name in ("lookups", "misses", "new_rows", "evicted_rows", "disk_reads"):
        assert getattr(both.run, name) == pytest.approx(getattr(small.run, name) + getattr(large.run, name))
    assert both.disk_bytes == small.disk_bytes + large.disk_bytes
    assert small.record_bytes < both.record_bytes < large.record_bytes
    assert large.hit_rate > both.hit_rate > small.hit_rate
    assert add_caches([small]) == replace(small, record_bytes=pytest.approx(small.record_bytes))


def test_ranks_add_up_and_wait_for_the_slowest() -> None:
    parts = [
        (part.run.lookups, predict_tier(part, 0.002, DISK, cores=1)) for part in (cache(8_000), cache(40_000))
    ]
    both = add_ranks(parts)
    tiers = [tier for _, tier in parts]
    assert both.reads_per_sample == sum(tier.reads_per_sample for tier in tiers)
    assert both.hit_rate == pytest.approx(sum(tier.hit_rate for tier in tiers) / 2)
    assert both.step_seconds == max(tier.step_seconds for tier in tiers)
    assert both.bound_by == max(tiers, key=lambda tier: tier.step_seconds).bound_by
