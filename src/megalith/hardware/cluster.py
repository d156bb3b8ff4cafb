"""Devices, links and clusters: the one description that the planner, the server and the Explorer read.

A cluster is a device and a list of levels from the innermost out: 8 devices a node over NVLink, 64 nodes a
zone over InfiniBand, 2 buildings over a wide-area link. `count` is how many members of the level below one
member of this level holds; `link` is what each of those members has toward the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """One kind of memory that a device can reach."""

    name: str
    bytes: int
    bytes_per_second: float
    latency_seconds: float = 0.0
    block_bytes: int = 0
    """The smallest piece that is read of a disk; 0 for memory, whose lines are a matter of the cost model."""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator, a card or a processor."""

    name: str
    flops: Mapping[str, float] = field(hash=False)
    """Peak FLOP/s of dense matrix products by type: fp32, tf32, fp16, bf16, fp8, int8 (operations)."""
    memory: tuple[MemoryTier, ...]
    """Fastest first; the first is where weights and activations live."""
    watts: float = 0.0
    multiprocessors: int = 0
    """Units that compute tiles of a matrix product; 0 where waves of tiles do not matter."""
    price_per_hour: float = 0.0
    generation: str = ""
    """ampere, hopper, ...: what `cost/calibration.yaml` says of devices that have no entry of their own."""
    cores: int = 0
    """Of a processor: what several workers on it share; 0 where that is not known or does not matter."""
    core_bytes_per_second: float = 0.0
    """What one core reaches of the first memory while the others idle; 0 takes its part of what all reach."""
    on_chip_bytes: int = 0
    """Of a card: memory on the chip. Weights of a dense part that fits there are not read from the first
    memory."""

    @property
    def bytes(self) -> int:
        """Bytes of the first memory."""
        return self.memory[0].bytes

    @property
    def bytes_per_second(self) -> float:
        """Bandwidth of the first memory."""
        return self.memory[0].bytes_per_second


@dataclass(frozen=True, slots=True)
class Link:
    """What one member of a level has toward the other members of it."""

    name: str
    bytes_per_second: float
    """Each way, all ports together."""
    latency_seconds: float
    ports: int = 1
    """Physical links behind `bytes_per_second`: hashing of flows over them is what ECMP suffers from."""
    price_per_hour: float = 0.0
    flow_bytes_per_second: float = float("inf")
    """What one flow reaches at most; several flows together reach `bytes_per_second`."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a cluster: `count` members of the level below, joined by `link`."""

    name: str
    count: int
    link: Link
    oversubscription: float = 1.0
    """How many times less the network between members carries than all members together could send."""
    loss: float = 0.0
    """Share of packets lost."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A device, many times, in nested levels."""

    name: str
    device: Device
    levels: tuple[Level, ...]
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    shared_memory: Link | None = None
    """Between processes of one host, one a core: what each writes for the others, all at the same time."""
    loopback: Link | None = None
    """The same through sockets, where memory is not shared."""
    host: Device | None = None
    """The processor beside the devices of the innermost level, where these are cards that serve."""
    uplink: Link | None = None
    """Between that host and the switch behind which its cards are: they share it."""
    front_end: Link | None = None
    """Of each member of the innermost level, toward readers and storage; None where that is not known."""

    @property
    def devices(self) -> int:
        """Devices of the whole cluster."""
        return prod(level.count for level in self.levels)

    def devices_within(self, index: int) -> int:
        """Devices in one member of level `index`; -1 is a device alone."""
        return prod(level.count for level in self.levels[: index + 1])

    def level_index(self, name: str) -> int:
        """The index of the level of this name."""
        return next(index for index, level in enumerate(self.levels) if level.name == name)
