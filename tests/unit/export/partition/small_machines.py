"""Machines and models of round figures, so that what a request costs can be worked out by hand."""

from __future__ import annotations

from megalith.cost.serving.assumptions import ServingAssumptions
from megalith.cost.serving.card_host import CardHost
from megalith.export.partition.prediction import Setting
from megalith.export.partition.served.model import DenseWork, ServedModel, ServedTable
from megalith.hardware.cluster import Device, Link, MemoryTier

EXACT = ServingAssumptions(
    product_fraction=1,
    lookup_fraction=1,
    stream_fraction=1,
    link_fraction=1,
    transfer_seconds=0,
    launch_seconds=0,
    host_request_seconds=1e-3,
    host_transfer_seconds=0,
    memory_share=1,
    requests_in_flight=1,
)
"""Everything runs at its peak."""


def machine(
    cards: int = 2, megabytes: int = 800, gigabytes_per_second: float = 10, link: float = 1
) -> CardHost:
    """Cards of 10 int8 TOPS and 10 W; a host of 100 W, one core and 1 GB/s."""
    host = Device("host", {"fp32": 1e9}, (MemoryTier("ddr", 10**10, 1e9),), watts=100, cores=1)
    memory = MemoryTier("ddr", megabytes * 10**6, gigabytes_per_second * 1e9)
    card = Device("card", {"int8": 10e12}, (memory,), watts=10, on_chip_bytes=10**7)
    return CardHost("small", host, card, cards, Link("pcie", link * 1e9, 0), Link("up", 100e9, 0))


def table(
    name: str, megabytes: float = 500, lookups: float = 10, dim: int = 32, row_bytes: int = 64
) -> ServedTable:
    """A table of one feature."""
    size = int(megabytes * 10**6)
    return ServedTable(name, size // row_bytes, dim, row_bytes, size, (name,), lookups, 1)


def setting(*tables: ServedTable, on: CardHost | None = None, items: int = 100) -> Setting:
    """A request of 100 items; the dense part has 10 inputs and a million operations an item."""
    dense = DenseWork({"int8": 1e6}, weight_bytes=10**6, num_inputs=10, columns=100)
    return Setting(ServedModel("small", tables, dense, "int8"), on or machine(), items, assumed=EXACT)
