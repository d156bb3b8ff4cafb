"""Measuring this machine gives a catalog file that the catalog reads."""

from __future__ import annotations

from pathlib import Path

from megalith.hardware.catalog import catalog
from megalith.hardware.probe import probe


def test_this_machine_becomes_a_cluster_of_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    measured = probe(folder=tmp_path, seconds=0.01)
    measured.write(path)
    cluster = catalog(path).cluster("this-machine")
    assert cluster.devices == 1
    device = cluster.device
    assert device.flops["fp32"] > 1e8
    assert abs(device.bytes_per_second / measured.memory_bytes_per_second - 1) < 0.01
    assert [tier.name for tier in device.memory] == ["ddr", "ssd"]
    assert list(tmp_path.iterdir()) == [path]
