"""What flows get out of links: hashing, loss, limits of one flow, oversubscription."""

from __future__ import annotations

import random

import pytest

from megalith.cost.network import (
    ADAPTIVE_EFFICIENCY,
    delivery_efficiency,
    expected_maximum_load,
    flow_limit,
    routing_efficiency,
    usable_rate,
)
from megalith.hardware.cluster import Level, Link


def level(**changes: float) -> Level:
    link = Link(
        "x",
        100e9,
        changes.pop("latency", 1e-5),
        ports=int(changes.pop("ports", 8)),
        **{key: changes.pop(key) for key in ("flow_bytes_per_second",) if key in changes},
    )
    return Level("zone", 4, link, **changes)


@pytest.mark.parametrize(("balls", "bins"), [(2, 2), (8, 8), (64, 8), (32, 64), (5000, 16)])
def test_the_fullest_bin_is_what_throwing_balls_gives(balls: int, bins: int) -> None:
    draw = random.Random(0)
    rounds = 1500 if balls < 100 else 60
    total = 0
    for _ in range(rounds):
        counts = [0] * bins
        for _ in range(balls):
            counts[draw.randrange(bins)] += 1
        total += max(counts)
    assert expected_maximum_load(balls, bins) == pytest.approx(total / rounds, rel=0.06)


def test_one_bin_holds_all_and_many_balls_even_out() -> None:
    assert expected_maximum_load(7, 1) == 7
    assert expected_maximum_load(1, 8) == 1
    assert routing_efficiency("ecmp", 10**6, 8) == pytest.approx(1, abs=0.02)


def test_hashing_loses_what_spraying_does_not() -> None:
    assert routing_efficiency("ecmp", 8, 8) < 0.5 < ADAPTIVE_EFFICIENCY
    assert routing_efficiency("ecmp", 64, 8) > routing_efficiency("ecmp", 8, 8)
    assert routing_efficiency("spray", 8, 8) == 1
    assert routing_efficiency("ecmp", 8, 1) == 1


def test_resending_windows_costs_more_than_resending_packets() -> None:
    assert delivery_efficiency("ecmp", 0.0, 1e9, 1e-3) == 1
    assert delivery_efficiency("spray", 0.01, 1e9, 1e-3) == 0.99
    assert delivery_efficiency("ecmp", 0.01, 1e9, 1e-3) < 0.2
    # A window of one packet is a packet.
    assert delivery_efficiency("ecmp", 0.01, 1.0, 1e-9) == pytest.approx(0.99)


def test_an_ideal_link_gives_its_rate_over_its_oversubscription() -> None:
    assert usable_rate(level(ports=1), ranks=8) == 100e9
    assert usable_rate(level(ports=1, oversubscription=4.0), ranks=8) == 25e9


def test_more_flows_pass_the_limit_of_one() -> None:
    narrow = level(ports=1, flow_bytes_per_second=1e9)
    assert usable_rate(narrow, ranks=8) == 8e9
    assert usable_rate(narrow, ranks=8, multipath=4) == 32e9
    assert usable_rate(narrow, ranks=8, multipath=100) == 100e9


def test_loss_on_a_long_path_limits_each_flow_as_mathis_has_it() -> None:
    long = level(latency=0.03, loss=1e-4)
    assert flow_limit(long) == pytest.approx(4096 * 1.5**0.5 / (0.06 * 1e-2))
    assert flow_limit(level(loss=1e-4)) == float("inf")
    assert usable_rate(long, ranks=1, routing="spray") < usable_rate(
        long, ranks=1, routing="spray", multipath=8
    )
