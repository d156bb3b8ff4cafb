"""Rings over links that differ."""

from __future__ import annotations

import pytest

from megalith.cost.collectives import Fabric, LevelSpan, ring_seconds
from megalith.cost.uneven_ring import uneven_ring_seconds
from megalith.hardware.catalog import catalog
from megalith.hardware.cluster import Cluster, Level, Link


def edge(rate: float, latency: float) -> Level:
    return Level("pair", 2, Link("link", rate, latency))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("repeated", [False, True])
def test_equal_edges_are_a_plain_ring(kind: str, repeated: bool) -> None:
    level = edge(1e9, 0.01)
    cluster = Cluster("", catalog().device("cpu"), (Level("ring", 4, level.link),))
    plain = ring_seconds(Fabric(cluster, ideal=True), kind, (LevelSpan(4, 1),), 1e8)  # type: ignore[arg-type]
    assert uneven_ring_seconds([level] * 4, kind, 1e8, repeated=repeated) == pytest.approx(plain)


def test_a_narrow_edge_carries_all_of_its_messages() -> None:
    edges = [edge(1e9, 0), edge(1e9, 0), edge(1e8, 0)]
    assert uneven_ring_seconds(edges, "all_reduce", 3e8) == pytest.approx(4 * 1.0)


def test_a_long_edge_is_on_the_longest_chain_as_often_as_it_comes_round() -> None:
    edges = [edge(1e15, 0.01), edge(1e15, 0.02), edge(1e15, 0.1)]
    # Four hops of a ring of three: one edge twice, the longest.
    assert uneven_ring_seconds(edges, "all_reduce", 3.0) == pytest.approx(0.23)
    assert uneven_ring_seconds(edges, "all_gather", 3.0, repeated=True) == pytest.approx(2 * 0.13 / 3)
