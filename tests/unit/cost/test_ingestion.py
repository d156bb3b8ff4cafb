"""Readers and their network, and parameter servers: what exhausts them, and that nothing is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megalith.core.errors import PlanError
from megalith.cost.ingestion import LINK_SHARE, PREPARED_CORE_RATE, RAW_CORE_RATE, SampleShape, ingestion
from megalith.cost.parameter_server import ParameterServerTable, parameter_server_system
from megalith.hardware.catalog import catalog

HOSTS = catalog().cluster("cpu-servers")
ZIONEX = catalog().cluster("zionex")
CRITEO = SampleShape(13, 26, 26.0)
TABLE = ParameterServerTable(2.0**30, 20.0, 64, 4, 4.0, 1.0)


def test_bytes_of_a_sample_are_those_that_readers_hand_over() -> None:
    assert CRITEO.bytes == 4 * 13 + 4 + 8 * 26
    # Offsets are sent where samples have several ids.
    assert SampleShape(13, 26, 40.0).bytes == 4 * 13 + 4 + 8 * 40 + 8 * 26


def test_readers_are_bound_by_cores_from_raw_files_and_by_links_from_prepared_ones() -> None:
    link = LINK_SHARE * 25e9 / 8
    prepared = ingestion(CRITEO, 1e9, replace(ZIONEX, front_end=None), 16, HOSTS)
    assert prepared.reader_bound_by == "link"
    assert prepared.reader_hosts == -(-264e9 // link)
    assert prepared.reader_cores == -(-264e9 // PREPARED_CORE_RATE)
    assert prepared.front_end_share is None
    slow = replace(HOSTS, device=replace(HOSTS.device, cores=8))
    raw = ingestion(CRITEO, 1e9, ZIONEX, 16, slow, from_raw=True)
    assert raw.reader_bound_by == "cores"
    assert raw.reader_hosts == -(-264e9 // (8 * RAW_CORE_RATE))


def test_a_front_end_that_is_too_narrow_bounds_the_rate_and_the_readers() -> None:
    wide = ingestion(CRITEO, 1e9, ZIONEX, 16, HOSTS)
    assert wide.fed_samples_per_second == 1e9
    narrow = ingestion(CRITEO, 1e9, ZIONEX, 1, HOSTS)
    assert narrow.front_end_share is not None
    assert narrow.front_end_share == pytest.approx(264e9 / (LINK_SHARE * 50e9))
    assert narrow.fed_samples_per_second == pytest.approx(1e9 / narrow.front_end_share)
    assert narrow.reader_hosts < wide.reader_hosts


def test_accelerators_do_not_read_or_serve() -> None:
    with pytest.raises(PlanError, match="a100-40g"):
        ingestion(CRITEO, 1e6, ZIONEX, 16, ZIONEX)
    with pytest.raises(PlanError, match="a100-40g"):
        parameter_server_system([TABLE], ZIONEX, trainers=1, flops_per_sample=1e6, sample_bytes=264.0)


def test_servers_hold_the_tables_and_keep_up_with_the_trainers() -> None:
    def system(trainers: int, servers: int | None = None, tables: int = 1):
        return parameter_server_system(
            [TABLE] * tables,
            HOSTS,
            trainers=trainers,
            flops_per_sample=1e6,
            sample_bytes=264.0,
            servers=servers,
        )

    one, many = system(1), system(64)
    assert many.samples_per_second == pytest.approx(64 * one.samples_per_second)
    assert many.servers > one.servers == 1
    held_up = system(64, servers=1)
    assert held_up.bound_by.startswith("servers")
    assert held_up.samples_per_second < many.samples_per_second
    # 205 GiB of a host are for tables.
    assert system(1, tables=206).servers == 2
    with pytest.raises(PlanError, match="--servers 2"):
        system(1, servers=1, tables=206)


def test_layers_bound_a_model_of_many_flops() -> None:
    system = parameter_server_system([TABLE], HOSTS, trainers=4, flops_per_sample=1e9, sample_bytes=264.0)
    assert system.bound_by == "layers"
    # 5.3 TFLOP/s, of which products reach 80% and MLPs half of that; forward and backward.
    assert system.samples_per_second == pytest.approx(4 * 5.3e12 * 0.8 * 0.5 / 3e9)
