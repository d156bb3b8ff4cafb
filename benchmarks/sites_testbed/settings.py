"""What is run over three sites: pipelines, replicas and fully-sharded layers, over links that all differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

MS, MBIT = 1e-3, 1e6
Links = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
"""Delay in milliseconds and rate in Mb/s of the pairs 0-1, 0-2 and 1-2."""


@dataclass(frozen=True, slots=True)
class SiteSetting:
    """One row: what crosses sites, over which links, and how quick each site is."""

    name: str
    kind: Literal["pipeline", "replicas", "sharded"]
    links: Links
    speeds: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """How many times as long an operation takes on each site."""
    shares: tuple[int, int, int] = (4, 4, 4)
    """Layers of each stage, or micro-batches of each site."""
    schedule: str = "1f1b"
    extra_in_flight: int = 0
    micro_batches: int = 8
    layers: int = 6
    layer_seconds: float = 0.012
    """Forward of one layer; its backward takes twice as long."""
    message_bytes: int = 400_000
    """Between stages; gradients of a site, or parameters of a layer."""

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return asdict(self)


NEAR: Links = ((5, 200), (10, 200), (5, 200))
FAR: Links = ((5, 200), (60, 100), (30, 100))

SETTINGS = (
    SiteSetting("pipeline, three links", "pipeline", ((5, 200), (40, 50), (20, 100))),
    SiteSetting("pipeline, gpipe", "pipeline", ((5, 200), (40, 50), (20, 100)), schedule="gpipe"),
    SiteSetting("pipeline, first link narrow", "pipeline", ((10, 40), (40, 50), (5, 200))),
    SiteSetting("pipeline, second link long", "pipeline", ((5, 200), (40, 50), (60, 200))),
    SiteSetting(
        "pipeline, more in flight",
        "pipeline",
        ((5, 200), (40, 50), (60, 200)),
        schedule="long-link",
        extra_in_flight=4,
    ),
    SiteSetting(
        "pipeline, a slow site with fewer layers",
        "pipeline",
        ((5, 200), (40, 50), (20, 100)),
        speeds=(1.0, 1.0, 2.0),
        shares=(5, 5, 2),
    ),
    SiteSetting("replicas, near", "replicas", NEAR, message_bytes=6_000_000),
    SiteSetting("replicas, far", "replicas", FAR, message_bytes=6_000_000),
    SiteSetting(
        "replicas, one link narrow", "replicas", ((5, 200), (10, 30), (5, 200)), message_bytes=6_000_000
    ),
    SiteSetting(
        "replicas, a slow site with fewer samples",
        "replicas",
        FAR,
        speeds=(1.0, 1.0, 2.0),
        shares=(5, 5, 2),
        message_bytes=6_000_000,
    ),
    SiteSetting("fully sharded, near", "sharded", NEAR, message_bytes=1_200_000),
    SiteSetting("fully sharded, far", "sharded", FAR, message_bytes=1_200_000),
    SiteSetting(
        "fully sharded, behind much compute", "sharded", NEAR, message_bytes=600_000, layer_seconds=0.06
    ),
)
