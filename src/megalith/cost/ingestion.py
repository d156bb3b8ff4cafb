"""How many readers a training step needs, and what the network that brings its data carries.

    bytes a sample = 4 x numbers + 4 (label) + 8 x ids, and 8 for each feature where samples have several ids

as readers hand batches over (data/loader/packed.py). A reader's core makes so many of these bytes a second,
from prepared files or from raw ones; a host has its cores and its link. The front-end network joins readers
and trainers; it is not the one over which trainers exchange vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from megalith.core.errors import PlanError
from megalith.hardware.cluster import Cluster

NUMBER_BYTES, LABEL_BYTES, ID_BYTES, OFFSET_BYTES = 4, 4, 8, 8
PREPARED_CORE_RATE = 6.0e8
"""Bytes of batches that a core makes a second of prepared files: 4.6 million samples of 264 bytes on two
(`megalith bench data --only loader`, README)."""
RAW_CORE_RATE = 1.0e8
"""Of raw text: 777,000 such samples on two cores (`megalith bench data --only prepare`)."""
LINK_SHARE = 0.84
"""Of a link's rate, what streams of batches reach: as collectives (between_fraction of the calibration)."""


@dataclass(frozen=True, slots=True)
class SampleShape:
    """What readers send of a sample."""

    numbers: int
    features: int
    ids: float
    """Mean ids of all features together."""

    @property
    def bytes(self) -> float:
        """As batches are handed over.

        >>> SampleShape(13, 26, 26.0).bytes
        264.0
        """
        several = OFFSET_BYTES * self.features if self.ids != self.features else 0
        return NUMBER_BYTES * self.numbers + LABEL_BYTES + ID_BYTES * self.ids + several


@dataclass(frozen=True, slots=True)
class Ingestion:
    """What feeding a plan takes."""

    sample_bytes: float
    samples_per_second: float
    """That the trainers could take."""
    bytes_per_second: float
    nodes: int
    """Over which the data comes in."""
    front_end: str | None
    """The link of each of them; None where the cluster names none."""
    front_end_samples_per_second: float | None
    """What these links carry."""
    reader_device: str
    reader_cores: int
    reader_hosts: int
    reader_bound_by: str
    """`cores` or `link`: what a host of readers has too little of."""
    from_raw: bool

    @property
    def front_end_share(self) -> float | None:
        """Of what the front-end network carries, what the plan takes; above 1 it waits for data."""
        carried = self.front_end_samples_per_second
        return None if carried is None else self.samples_per_second / carried

    @property
    def fed_samples_per_second(self) -> float:
        """With as many readers as it takes."""
        carried = self.front_end_samples_per_second
        return self.samples_per_second if carried is None else min(self.samples_per_second, carried)

    def to_dict(self) -> dict[str, Any]:
        """As `megalith plan --json` prints it."""
        return {
            "sample_bytes": self.sample_bytes,
            "samples_per_second": self.samples_per_second,
            "bytes_per_second": self.bytes_per_second,
            "front_end": self.front_end,
            "front_end_samples_per_second": self.front_end_samples_per_second,
            "front_end_share": self.front_end_share,
            "fed_samples_per_second": self.fed_samples_per_second,
            "readers": {
                "device": self.reader_device,
                "cores": self.reader_cores,
                "hosts": self.reader_hosts,
                "bound_by": self.reader_bound_by,
                "from": "raw" if self.from_raw else "prepared",
            },
        }


def ingestion(
    sample: SampleShape,
    samples_per_second: float,
    trainers: Cluster,
    nodes: int,
    readers: Cluster,
    *,
    from_raw: bool = False,
) -> Ingestion:
    """Readers are hosts of `readers`, as many as the rate needs; each has its link of that cluster."""
    device = readers.device
    if device.generation != "cpu" or not device.cores:
        raise PlanError(
            f"{readers.name or 'The cluster'} has {device.name}, and readers are processors with a number of "
            "cores; take --readers cpu-servers or describe such a cluster."
        )
    moved = sample.bytes * samples_per_second
    core_rate = RAW_CORE_RATE if from_raw else PREPARED_CORE_RATE
    link = readers.front_end or readers.levels[0].link
    by_cores, by_link = device.cores * core_rate, LINK_SHARE * link.bytes_per_second
    carried = None
    if trainers.front_end is not None:
        carried = nodes * LINK_SHARE * trainers.front_end.bytes_per_second / sample.bytes
    fed = moved if carried is None else min(moved, carried * sample.bytes)
    return Ingestion(
        sample.bytes,
        samples_per_second,
        moved,
        nodes,
        None if trainers.front_end is None else trainers.front_end.name,
        carried,
        device.name,
        max(1, ceil(fed / core_rate)),
        max(1, ceil(fed / min(by_cores, by_link))),
        "cores" if by_cores < by_link else "link",
        from_raw,
    )
