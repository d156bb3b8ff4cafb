"""The catalog: everything named builds, users add and replace, wrong names get the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from megalith.core.errors import ConfigError
from megalith.hardware.catalog import ClusterSpec, LevelSpec, catalog

DEVICES = (
    "a100-40g",
    "a100-80g",
    "h100-80g",
    "h200",
    "gb200",
    "mi300x",
    "cpu",
    "yosemite-card",
    "yosemite-host",
    "nnpi-1150",
    "mtia-v1",
    "mtia-v2",
)
LINKS = [
    "nvlink3",
    "nvlink4",
    "nvlink5",
    "ib-hdr200x8",
    "ib-ndr400x8",
    "roce-200x8",
    "roce-400x8",
    "pcie4-x4",
    "wan-region",
    "wan-cross-region",
]
CLUSTERS = ("zionex", "dgx-a100", "dgx-h100", "gb200-nvl72", "yosemite-v2", "two-buildings", "three-regions")


def test_every_name_of_the_design_is_there() -> None:
    found = catalog()
    for name in DEVICES:
        assert found.device(name).bytes > 0
    for name in LINKS:
        assert found.link(name).bytes_per_second > 0
    for name in CLUSTERS:
        assert found.cluster(name).devices > 1


@pytest.mark.parametrize("name", sorted(catalog().clusters))
def test_clusters_get_slower_and_farther_outward(name: str) -> None:
    levels = catalog().cluster(name).levels
    latencies = [level.link.latency_seconds for level in levels]
    assert latencies == sorted(latencies)


def test_rates_are_bytes_each_way() -> None:
    found = catalog()
    assert found.link("ib-hdr200x8").bytes_per_second == 8 * 200e9 / 8
    assert found.link("nvlink3").bytes_per_second == 300e9
    assert found.device("a100-80g").memory[0].bytes == 80 * 2**30


@pytest.mark.parametrize("name", ["yosemite-v2", "yosemite-v2-mtia-v1", "yosemite-v2-mtia-v2"])
def test_hosts_of_cards_have_both(name: str) -> None:
    cluster = catalog().cluster(name)
    assert cluster.levels[0].count == 6
    assert cluster.host == catalog().device("yosemite-host")
    # Cards share what the host has toward their switch, so one of them has no more.
    assert cluster.uplink is not None
    assert cluster.uplink.bytes_per_second >= cluster.levels[0].link.bytes_per_second
    assert cluster.device.flops["int8"] >= cluster.device.flops["fp16"]
    assert cluster.device.on_chip_bytes < cluster.device.bytes


def test_other_clusters_have_no_host() -> None:
    assert catalog().cluster("zionex").host is None


def test_a_user_s_file_adds_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "devices:\n  a100-80g:\n    flops: {bf16: 1.0e12}\n"
        "    memory: [{name: hbm, gibibytes: 1, gigabytes_per_second: 10}]\n"
        "links:\n  string: {gigabits_per_second: 8, latency_seconds: 1.0}\n"
        "clusters:\n  mine:\n    device: a100-80g\n    levels: [{name: node, count: 2, link: string}]\n"
    )
    mine = catalog(path)
    cluster = mine.cluster("mine")
    assert cluster.device.bytes == 2**30
    assert cluster.levels[0].link.bytes_per_second == 1e9
    assert mine.device("h200") == catalog().device("h200")
    assert catalog().device("a100-80g").bytes == 80 * 2**30


def test_levels_may_replace_the_link_s_figures() -> None:
    level = LevelSpec(
        name="zone", count=4, link="ib-hdr200x8", gigabits_per_second=80, latency_seconds=1e-3, ports=2
    )
    link = catalog().build(ClusterSpec(device="h200", levels=(level,))).levels[0].link
    assert (link.bytes_per_second, link.latency_seconds, link.ports) == (10e9, 1e-3, 2)


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("device", "h100-80", "h100-80g"),
        ("link", "nvlink6", "nvlink"),
        ("cluster", "two-building", "two-buildings"),
    ],
)
def test_a_wrong_name_gets_the_nearest(kind: str, wrong: str, right: str) -> None:
    found = catalog()
    ask = {"device": found.device, "link": found.link, "cluster": found.cluster}[kind]
    with pytest.raises(ConfigError, match=f"Unknown {kind} '{wrong}'; did you mean '{right}"):
        ask(wrong)


def test_two_levels_of_one_name_are_refused() -> None:
    level = LevelSpec(name="node", count=2, link="nvlink3")
    with pytest.raises(ConfigError, match="'node' occurs twice"):
        catalog().build(ClusterSpec(device="h200", levels=(level, level)))


def test_a_link_needs_exactly_one_rate(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("links:\n  string: {latency_seconds: 1.0}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml.*gigabytes_per_second"):
        catalog(path)
