"""Collectives fall back to the closed forms in their limits (research notes on ScaleAcross, formulas)."""

from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megalith.cost.collectives import (
    Fabric,
    LevelSpan,
    all_to_all_seconds,
    collective_seconds,
    egress_bytes,
    group_size,
    hierarchical_seconds,
    ring_seconds,
    tree_seconds,
)
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster, Level, Link

SIZE = 1e9


def fabric(*levels: tuple[int, float, float], algorithm: str = "auto") -> Fabric:
    """Ideal links: (members, bytes per second, latency) from the innermost out."""
    built = tuple(
        Level(f"level{index}", count, Link("x", rate, latency))
        for index, (count, rate, latency) in enumerate(levels)
    )
    cluster = Cluster("c", catalog().device("h100-80g"), built)
    return Fabric(cluster, "spray", algorithm=algorithm, ideal=True)


@given(st.integers(2, 512), st.floats(1e8, 1e12), st.floats(0, 1e-2))
def test_one_level_is_the_textbook(ranks: int, rate: float, latency: float) -> None:
    one, group = fabric((ranks, rate, latency)), (LevelSpan(ranks, 1),)
    share = (ranks - 1) / ranks * SIZE / rate
    assert ring_seconds(one, "all_reduce", group, SIZE) == pytest.approx(
        2 * share + 2 * (ranks - 1) * latency
    )
    assert ring_seconds(one, "all_gather", group, SIZE) == pytest.approx(share + (ranks - 1) * latency)
    assert ring_seconds(one, "reduce_scatter", group, SIZE) == pytest.approx(share + (ranks - 1) * latency)
    assert tree_seconds(one, "all_reduce", group, SIZE) == pytest.approx(
        2 * share + 2 * log2(ranks) * latency
    )
    assert all_to_all_seconds(one, group, SIZE) == pytest.approx(share + latency)
    ring = ring_seconds(one, "all_reduce", group, SIZE)
    assert hierarchical_seconds(one, "all_reduce", group, SIZE) == pytest.approx(ring)


@given(st.integers(2, 8), st.integers(2, 64))
def test_two_tiers_are_three_phases(sites: int, inside: int) -> None:
    near, far, wait = 400e9, 1e9, 0.03
    two = fabric((inside, near, 0.0), (sites, far, wait))
    group = (LevelSpan(inside, 1), LevelSpan(sites, 1))
    # Reduce-scatter inside, all-reduce of S/n by n ranks that share the site's link, all-gather inside.
    expected = 2 * (inside - 1) / inside * SIZE / near
    expected += 2 * (sites - 1) / sites * (SIZE / inside) / (far / inside) + 2 * (sites - 1) * wait
    assert hierarchical_seconds(two, "all_reduce", group, SIZE) == pytest.approx(expected)


@given(st.integers(2, 8), st.integers(1, 4096))
def test_a_site_sends_the_same_however_many_devices_it_has(sites: int, inside: int) -> None:
    group = (LevelSpan(inside, 1), LevelSpan(sites, 1))
    assert egress_bytes("all_reduce", group, 1, SIZE) == pytest.approx(2 * (sites - 1) / sites * SIZE)
    assert egress_bytes("reduce_scatter", group, 1, SIZE) == pytest.approx((sites - 1) / sites * SIZE)


def test_a_flat_ring_pays_the_wide_latency_at_every_step() -> None:
    sites, inside, wait = 2, 64, 0.03
    two = fabric((inside, 1e15, 0.0), (sites, 1e15, wait), algorithm="flat")
    group = (LevelSpan(inside, 1), LevelSpan(sites, 1))
    steps = 2 * (sites * inside - 1)
    assert collective_seconds(two, "all_reduce", group, 1.0) == pytest.approx(steps * wait, rel=1e-6)


def test_auto_is_what_nccl_has() -> None:
    levels = ((8, 400e9, 1e-6), (16, 50e9, 1e-5), (2, 10e9, 1e-2))
    group = (LevelSpan(8, 1), LevelSpan(16, 1), LevelSpan(2, 1))
    for size in (1e3, 1e6, 1e9):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            auto = collective_seconds(fabric(*levels), kind, group, size)
            assert auto <= collective_seconds(fabric(*levels, algorithm="flat"), kind, group, size)
        # Nothing hierarchical for gathers: a ring through all ranks, each hop's latency once, the wide-area
        # link's among them.
        hops = (256 - 32) * 1e-6 + (32 - 2) * 1e-5 + 1e-2
        assert auto == pytest.approx(255 / 256 * size / 10e9 + hops)


def test_an_all_reduce_over_nodes_sends_each_byte_once_per_node() -> None:
    levels = ((8, 400e9, 0.0), (2, 50e9, 0.0))
    group = (LevelSpan(8, 1), LevelSpan(2, 1))
    auto = collective_seconds(fabric(*levels), "all_reduce", group, 1e9)
    assert auto == pytest.approx(2 * 7 / 8 * 1e9 / 400e9 + 1e9 / 50e9)


def test_groups_that_share_a_link_share_its_rate() -> None:
    one = fabric((8, 1e12, 0.0), (4, 1e9, 0.0))
    alone = collective_seconds(one, "all_reduce", (LevelSpan(1, 1), LevelSpan(4, 1)), SIZE)
    assert collective_seconds(one, "all_reduce", (LevelSpan(1, 1), LevelSpan(4, 8)), SIZE) == pytest.approx(
        8 * alone
    )


def test_compression_shrinks_the_outermost_level_only() -> None:
    two = fabric((8, 1e9, 0.0), (2, 1e9, 0.0), algorithm="hierarchical")
    group = (LevelSpan(8, 1), LevelSpan(2, 1))
    inner = 2 * 7 / 8 * SIZE / 1e9
    assert collective_seconds(two, "all_reduce", group, SIZE, shrink=4.0) == pytest.approx(
        inner + SIZE / 1e9 / 4
    )
    assert egress_bytes("all_reduce", group, 1, SIZE, shrink=4.0) == pytest.approx(SIZE / 4)
    assert egress_bytes("all_reduce", group, 0, SIZE, shrink=4.0) == pytest.approx(2 * 7 / 8 * SIZE)


def test_one_rank_or_no_bytes_cost_nothing() -> None:
    one = fabric((8, 1e9, 1e-3))
    assert collective_seconds(one, "all_reduce", (LevelSpan(1, 1),), SIZE) == 0
    assert collective_seconds(one, "all_reduce", (LevelSpan(8, 1),), 0.0) == 0
    assert all_to_all_seconds(one, (LevelSpan(1, 1),), SIZE) == 0
    assert group_size((LevelSpan(8, 1), LevelSpan(3, 2))) == 24


@given(st.floats(1e3, 1e10), st.floats(1.01, 10))
def test_more_bytes_never_take_less(size: float, factor: float) -> None:
    real = Fabric(catalog().cluster("two-buildings"), "ecmp")
    group = (LevelSpan(8, 1), LevelSpan(64, 1), LevelSpan(4, 1), LevelSpan(2, 1))
    assert collective_seconds(real, "all_reduce", group, size) <= collective_seconds(
        real, "all_reduce", group, size * factor
    )
