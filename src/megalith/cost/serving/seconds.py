"""Seconds of the four kinds of work that a request is made of, on a card, a link and a host.

Lookups take the bytes of whole lines that their rows touch, products are bound by operations or by weights
that are read (a roofline), transfers begin and then move bytes, the host handles a request and copies what it
sends on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from megalith.cost.operators import peak_flops
from megalith.cost.serving.assumptions import ServingAssumptions
from megalith.hardware.cluster import Device, Link

BITS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
"""Of a weight in a frozen table, by precision."""
_RATES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}


def encoded_row_bytes(precision: str, dim: int, scale_bytes: int = 2) -> int:
    """Bytes of a frozen row: codes, and for integers a scale and a bias.

    >>> encoded_row_bytes("int8", 64), encoded_row_bytes("int4", 64), encoded_row_bytes("float16", 64)
    (68, 36, 128)
    """
    overhead = 2 * scale_bytes if precision in ("int8", "int4") else 0
    return -(-dim * BITS[precision] // 8) + overhead


def row_line_bytes(row_bytes: float, line_bytes: int) -> int:
    """Bytes that one random row moves: rows are packed, so those that do not fill whole lines straddle some,
    on average `line - gcd(row, line)` bytes more.

    >>> row_line_bytes(64, 64), row_line_bytes(36, 64), row_line_bytes(132, 64)
    (64, 96, 192)
    """
    row = ceil(row_bytes)
    return row + line_bytes - min(row & -row, line_bytes) if row else 0


def lookup_seconds(
    card: Device, assumed: ServingAssumptions, line_bytes_read: float, vector_bytes_written: float
) -> float:
    """Reading whole lines of rows from the first memory and writing pooled vectors there."""
    read = line_bytes_read / (card.bytes_per_second * assumed.lookup_fraction)
    return read + vector_bytes_written / (card.bytes_per_second * assumed.stream_fraction)


class ProductSeconds(NamedTuple):
    """Both sides of the roofline of a dense part."""

    compute: float
    memory: float

    @property
    def longer(self) -> float:
        """Seconds of the dense part: the shorter side hides behind the longer."""
        return max(self)


def product_seconds(
    card: Device, assumed: ServingAssumptions, operations: Mapping[str, float], weight_bytes: float
) -> ProductSeconds:
    """Products of a request: `operations` by precision, and the weights, which are read each time unless
    they stay on the chip."""
    compute = sum(
        count / (peak_flops(card, _RATES[precision]) * assumed.product_fraction)
        for precision, count in operations.items()
    )
    read = 0.0 if weight_bytes <= card.on_chip_bytes else weight_bytes
    return ProductSeconds(compute, read / (card.bytes_per_second * assumed.stream_fraction))


def transfer_seconds(
    link: Link, assumed: ServingAssumptions, moved_bytes: float, transfers: float = 1
) -> float:
    """Transfers one after the other over a link: each begins, then its bytes move."""
    begin = link.latency_seconds + assumed.transfer_seconds
    return transfers * begin + moved_bytes / (link.bytes_per_second * assumed.link_fraction)


class HostSeconds(NamedTuple):
    """What a request takes of a host."""

    core: float
    """One core, from the request to the last submitted transfer."""
    memory: float
    """All of its memory bandwidth."""


def host_seconds(
    host: Device, assumed: ServingAssumptions, copied_bytes: float, lookup_bytes: float, transfers: float
) -> HostSeconds:
    """A request is taken apart and copied once for the cards, small tables are looked up."""
    moved = 2 * copied_bytes + lookup_bytes / assumed.lookup_fraction
    core_rate = host.core_bytes_per_second or host.bytes_per_second / max(host.cores, 1)
    core = assumed.host_request_seconds + transfers * assumed.host_transfer_seconds
    return HostSeconds(
        core + moved / (core_rate * assumed.stream_fraction),
        moved / (host.bytes_per_second * assumed.stream_fraction),
    )
