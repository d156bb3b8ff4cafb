"""Devices, links and clusters by name: YAML files beside this one, and a user's own that add or replace
entries.

catalog()                        what ships with the package
catalog(Path("mine.yaml"))       the same with the user's entries laid over it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from megalith.core.config import Config, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.hardware.cluster import Cluster, Device, Level, Link, MemoryTier

_FOLDER = Path(__file__).parent
SHARED_MEMORY, LOOPBACK = "shared-memory", "loopback"
"""Links between processes of one host."""
Entry = TypeVar("Entry")
MOST_GIGABITS, MOST_SECONDS, MOST_MEMBERS = 1e9, 60.0, 10_000_000
"""No link carries more, no message between two places on Earth takes longer, no level has more members:
figures beyond these are slips of units."""


class TierEntry(Config):
    """A memory tier as a catalog file writes it."""

    name: str
    gibibytes: float = Field(gt=0, le=1e9)
    gigabytes_per_second: float = Field(gt=0, le=MOST_GIGABITS)
    latency_seconds: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    block_bytes: int = Field(default=0, ge=0)


class DeviceEntry(Config):
    """A device as a catalog file writes it."""

    generation: str = ""
    flops: dict[str, Annotated[float, Field(gt=0, le=1e18)]]
    memory: tuple[TierEntry, ...] = Field(min_length=1)
    watts: float = Field(default=0.0, ge=0)
    multiprocessors: int = Field(default=0, ge=0)
    price_per_hour: float = Field(default=0.0, ge=0)
    cores: int = Field(default=0, ge=0)
    core_gigabytes_per_second: float = Field(default=0.0, ge=0)
    on_chip_mebibytes: float = Field(default=0.0, ge=0)

    def build(self, name: str) -> Device:
        """The device, in bytes and bytes a second."""
        tiers = tuple(
            MemoryTier(
                *(tier.name, int(tier.gibibytes * 2**30), tier.gigabytes_per_second * 1e9),
                *(tier.latency_seconds, tier.block_bytes),
            )
            for tier in self.memory
        )
        return Device(
            *(name, self.flops, tiers, self.watts, self.multiprocessors, self.price_per_hour),
            *(self.generation, self.cores, self.core_gigabytes_per_second * 1e9),
            int(self.on_chip_mebibytes * 2**20),
        )


class LinkEntry(Config):
    """A link as a catalog file writes it."""

    gigabytes_per_second: float | None = Field(default=None, gt=0, le=MOST_GIGABITS)
    gigabits_per_second: float | None = Field(default=None, gt=0, le=MOST_GIGABITS)
    latency_seconds: float = Field(ge=0, le=MOST_SECONDS)
    ports: int = Field(default=1, gt=0)
    flow_gigabits_per_second: float | None = Field(default=None, gt=0)
    price_per_hour: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _one_rate(self) -> LinkEntry:
        if (self.gigabytes_per_second is None) == (self.gigabits_per_second is None):
            raise ValueError("give one of gigabytes_per_second and gigabits_per_second")
        return self

    def build(self, name: str) -> Link:
        """The link, in bytes a second."""
        rate = (self.gigabytes_per_second or (self.gigabits_per_second or 0) / 8) * 1e9
        flow = self.flow_gigabits_per_second
        return Link(
            name,
            rate,
            self.latency_seconds,
            self.ports,
            self.price_per_hour,
            flow * 1e9 / 8 if flow else float("inf"),
        )


class LevelSpec(Config):
    """One level as a user writes it; the figures of the named link may be replaced."""

    name: str
    count: int = Field(gt=0, le=MOST_MEMBERS)
    link: str
    gigabits_per_second: float | None = Field(default=None, gt=0, le=MOST_GIGABITS)
    latency_seconds: float | None = Field(default=None, ge=0, le=MOST_SECONDS)
    ports: int | None = Field(default=None, gt=0)
    oversubscription: float = Field(default=1.0, ge=1)
    loss: float = Field(default=0.0, ge=0, lt=1)
    price_per_hour: float | None = Field(default=None, ge=0)


class ClusterSpec(Config):
    """A cluster as a user writes it: a device's name and levels from the innermost out.

    Cards that serve have a `host` (a device too) beside those of the innermost level, and may share its
    `uplink`.
    """

    name: str = ""
    device: str
    levels: tuple[LevelSpec, ...] = Field(min_length=1)
    host: str | None = None
    uplink: str | None = None


class CatalogFile(Config):
    """The content of one catalog file."""

    devices: dict[str, DeviceEntry] = Field(default_factory=dict)
    links: dict[str, LinkEntry] = Field(default_factory=dict)
    clusters: dict[str, ClusterSpec] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Devices, links and clusters by name; an unknown name is a ConfigError that offers the nearest."""

    devices: Mapping[str, Device]
    links: Mapping[str, Link]
    clusters: Mapping[str, ClusterSpec]

    def device(self, name: str) -> Device:
        """The device of this name."""
        return _named(self.devices, name, "device")

    def link(self, name: str) -> Link:
        """The link of this name."""
        return _named(self.links, name, "link")

    def cluster_spec(self, name: str) -> ClusterSpec:
        """The description of a cluster, as its file writes it."""
        return _named(self.clusters, name, "cluster")

    def cluster(self, name: str) -> Cluster:
        """The cluster of this name."""
        return self.build(self.cluster_spec(name))

    def build(self, spec: ClusterSpec) -> Cluster:
        """The cluster of a description: names looked up, replaced figures laid over them."""
        names = [level.name for level in spec.levels]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled:
            raise ConfigError(f"cluster.levels: the name '{doubled}' occurs twice; give each level its own.")
        levels = tuple(
            Level(level.name, level.count, self._link_of(level), level.oversubscription, level.loss)
            for level in spec.levels
        )
        return Cluster(
            *(spec.name, self.device(spec.device), levels),
            shared_memory=self.link(SHARED_MEMORY),
            loopback=self.link(LOOPBACK),
            host=None if spec.host is None else self.device(spec.host),
            uplink=None if spec.uplink is None else self.link(spec.uplink),
        )

    def _link_of(self, level: LevelSpec) -> Link:
        link = self.link(level.link)
        rate = (
            link.bytes_per_second
            if level.gigabits_per_second is None
            else level.gigabits_per_second * 1e9 / 8
        )
        return Link(
            link.name,
            rate,
            link.latency_seconds if level.latency_seconds is None else level.latency_seconds,
            level.ports or link.ports,
            link.price_per_hour if level.price_per_hour is None else level.price_per_hour,
            link.flow_bytes_per_second,
        )


def _named(entries: Mapping[str, Entry], name: str, kind: str) -> Entry:
    if name not in entries:
        raise ConfigError(
            f"Unknown {kind} '{name}'; {nearest(name, sorted(entries))} Or describe it in a YAML file of "
            f"your own "
            f"({kind}s: ...) and pass that with --hardware."
        )
    return entries[name]


@lru_cache(maxsize=16)
def catalog(*files: Path) -> Catalog:
    """The entries that ship with the package, with those of the given files added or replaced."""
    devices: dict[str, Device] = {}
    links: dict[str, Link] = {}
    clusters: dict[str, ClusterSpec] = {}
    for path in (*sorted(_FOLDER.glob("*.yaml")), *files):
        content = parse_config(CatalogFile, load_yaml(path), str(path))
        devices |= {name: entry.build(name) for name, entry in content.devices.items()}
        links |= {name: entry.build(name) for name, entry in content.links.items()}
        clusters |= {
            name: spec.model_copy(update={"name": name, "levels": spec.levels})
            for name, spec in content.clusters.items()
        }
    return Catalog(devices, links, clusters)


def find_cluster(name_or_path: str) -> Cluster:
    """A cluster of the catalog by its name, or the last one that a YAML file describes."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        return catalog().cluster(name_or_path)
    names = list(load_yaml(path).get("clusters") or ())
    if not names:
        raise ConfigError(f"{path} describes no cluster; add one under `clusters:`.")
    return catalog(path).cluster(names[-1])
