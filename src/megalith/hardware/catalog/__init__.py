"""Devices, links and clusters by name: YAML files beside this one, and a user's own that add or replace
entries.

catalog()                        what ships with the package
catalog(Path("mine.yaml"))       the same with the user's entries laid over it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, model_validator

from megalith.core.config import Config, load_yaml, parse_config
from megalith.core.errors import ConfigError, nearest
from megalith.hardware.cluster import Cluster, Device, Level, Link, MemoryTier
from megalith.hardware.sites import SiteCluster

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


class SiteSpec(Config):
    """One site as a user writes it: a cluster of its own, by what it has or by a name of the catalog."""

    name: str
    device: str = ""
    levels: tuple[LevelSpec, ...] = ()
    base: str | None = None
    """A cluster of the catalog in place of `device` and `levels`; either may replace its own."""


class SiteLinkSpec(Config):
    """What joins two sites, or every pair that has no entry of its own when `between` is left out."""

    between: tuple[str, str] | None = None
    link: str
    gigabits_per_second: float | None = Field(default=None, gt=0, le=MOST_GIGABITS)
    latency_seconds: float | None = Field(default=None, ge=0, le=MOST_SECONDS)
    ports: int | None = Field(default=None, gt=0)
    oversubscription: float = Field(default=1.0, ge=1)
    loss: float = Field(default=0.0, ge=0, lt=1)
    other_gigabits_per_second: float = Field(default=0.0, ge=0)
    """What other jobs send over it meanwhile."""
    price_per_hour: float | None = Field(default=None, ge=0)


class ClusterSpec(Config):
    """A cluster as a user writes it: a device's name and levels from the innermost out; or `sites` that may
    differ, and the `links` between them.

    Cards that serve have a `host` (a device too) beside those of the innermost level, and may share its
    `uplink`.
    """

    name: str = ""
    device: str = ""
    levels: tuple[LevelSpec, ...] = ()
    sites: tuple[SiteSpec, ...] = ()
    links: tuple[SiteLinkSpec, ...] = ()
    host: str | None = None
    uplink: str | None = None
    front_end: str | None = None
    """The link over which training data comes to each member of the innermost level."""

    @model_validator(mode="after")
    def _levels_or_sites(self) -> ClusterSpec:
        if self.sites and (self.levels or self.device):
            raise ValueError("give device and levels, or sites and links, not both")
        if self.sites and (len(self.sites) < 2 or not self.links):
            raise ValueError("sites must be two or more, with links between them")
        if not self.sites and not (self.levels and self.device):
            raise ValueError(f"key '{'levels' if self.device else 'device'}' is missing; add it, or sites")
        return self


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
        """The cluster of a description: names looked up, replaced figures laid over them. Sites that are all
        alike are one more level of it; a ConfigError where they differ."""
        if spec.sites:
            plain = self.build_sites(spec).plain()
            if plain is None:
                raise ConfigError(
                    f"cluster {spec.name or 'of the job'} has sites that differ, which only `explore "
                    "predict` and `explore goodput` take; describe one site, or equal ones."
                )
            return plain
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
            front_end=None if spec.front_end is None else self.link(spec.front_end),
        )

    def build_sites(self, spec: ClusterSpec) -> SiteCluster:
        """The sites of a description and the link of each pair."""
        names = [site.name for site in spec.sites]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled:
            raise ConfigError(f"cluster.sites: the name '{doubled}' occurs twice; give each site its own.")
        for entry in spec.links:
            unknown = next((name for name in entry.between or () if name not in names), None)
            if unknown or (entry.between and entry.between[0] == entry.between[1]):
                given = unknown or names[0]
                raise ConfigError(
                    f"cluster.links: between {list(entry.between or ())} must be two sites; "
                    f"{nearest(given, names)}"
                )
        pairs = tuple(
            (one, other, self._pair_level(spec, names[one], names[other]))
            for one in range(len(names))
            for other in range(one + 1, len(names))
        )
        return SiteCluster(spec.name, tuple(self._site(site) for site in spec.sites), pairs)

    def _site(self, site: SiteSpec) -> Cluster:
        base = self.cluster_spec(site.base) if site.base else None
        device, levels = site.device or (base.device if base else ""), site.levels
        levels = levels or (base.levels if base else ())
        if not device or not levels:
            raise ConfigError(
                f"cluster.sites: site '{site.name}' needs device and levels, or base (a cluster's name)."
            )
        return self.build(ClusterSpec(name=site.name, device=device, levels=levels))

    def _pair_level(self, spec: ClusterSpec, one: str, other: str) -> Level:
        own = [entry for entry in spec.links if entry.between and set(entry.between) == {one, other}]
        found = own or [entry for entry in spec.links if entry.between is None]
        if not found:
            raise ConfigError(
                f"cluster.links: no link between '{one}' and '{other}'; add one, or one without `between` "
                "for all others."
            )
        entry = found[-1]
        figures = entry.model_dump(exclude={"between", "other_gigabits_per_second"})
        level = LevelSpec(name=f"{one}-{other}", count=2, **figures)
        link = self._link_of(level)
        left = link.bytes_per_second - entry.other_gigabits_per_second * 1e9 / 8
        if left <= 0:
            raise ConfigError(
                f"cluster.links: other_gigabits_per_second={entry.other_gigabits_per_second:g} leaves "
                f"nothing of the link between '{one}' and '{other}'; take less than "
                f"{link.bytes_per_second * 8 / 1e9:g}."
            )
        link = replace(link, bytes_per_second=left)
        return Level(level.name, 2, link, level.oversubscription, level.loss)

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
