"""A host and the cards behind it, as one cluster of the catalog describes them."""

from __future__ import annotations

from dataclasses import dataclass

from megalith.core.errors import ConfigError
from megalith.hardware.cluster import Cluster, Device, Link


@dataclass(frozen=True, slots=True)
class CardHost:
    """One host with `cards` equal cards: each has a link to a switch, which has an uplink to the host."""

    name: str
    host: Device
    card: Device
    cards: int
    link: Link
    uplink: Link

    @property
    def watts(self) -> float:
        """Of the host and all cards, idle ones too."""
        return self.host.watts + self.cards * self.card.watts


def card_host(cluster: Cluster) -> CardHost:
    """The innermost level of a cluster, whose devices are cards; a cluster without a host is refused.

    >>> from megalith.hardware.catalog import catalog
    >>> found = card_host(catalog().cluster("yosemite-v2"))
    >>> found.cards, found.card.name, found.watts
    (6, 'nnpi-1150', 158.0)
    """
    if cluster.host is None:
        raise ConfigError(
            f"Cluster '{cluster.name}' has no host beside its devices; name one that has, such as "
            "yosemite-v2, or give yours `host: DEVICE` in its YAML file."
        )
    level = cluster.levels[0]
    # Without a switch of their own, cards share nothing.
    uplink = cluster.uplink or Link(
        level.link.name, level.count * level.link.bytes_per_second, level.link.latency_seconds
    )
    return CardHost(cluster.name, cluster.host, cluster.device, level.count, level.link, uplink)
