"""`partition.json` of a frozen model: which card holds which tables, and what serving is predicted to cost.

A server reads `cards`, `host_tables`, `user_features` and `replicas`; the rest is for people. Nothing in
`prediction` was measured.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from megalith.core.config import Config, parse_config
from megalith.core.errors import ServeError
from megalith.core.files import read_json_object, write_atomic

PARTITION = "partition.json"
VERSION = 1


class CardRecord(Config):
    """A card of a replica."""

    tables: tuple[str, ...]
    table_bytes: int = Field(ge=0)
    dense_bytes: int = Field(ge=0)
    """The copy of the dense part: weights, and buffers of the requests under way."""
    memory_bytes: int = Field(ge=0)
    """What the card has for both."""
    lookups: float
    """Of a request."""
    sparse_seconds: float
    """Of a request: ids in, lookups, pooled vectors out."""
    busy_seconds: dict[str, float]
    """Of a request, by part of the card: memory, compute, link_in, link_out."""
    requests_per_second: float
    """What it can take part in."""


class ServingPrediction(Config):
    """What the cost model says of a request of `items` items, and of as many as the host can take."""

    measured: Literal[False] = False
    items: int
    latency_seconds: float
    """Of one request that meets no other."""
    latency_parts: dict[str, float]
    """The same by what it waits for; they add up."""
    slowest_card_seconds: float
    """Ids in, lookups and vectors out, on the card that takes longest."""
    requests_per_second: float
    """All replicas together."""
    items_per_second: float
    bound_by: str
    """What keeps the rate from being higher."""
    watts: float
    """Host and all cards, as their data sheets have it."""
    requests_per_second_per_watt: float


class PlacementComparison(Config):
    """The slowest card's seconds if tables were placed another way, by rule; infeasible ones are left out."""

    slowest_card_seconds: dict[str, float]
    lower_bound_seconds: float
    """No placement on as many cards is quicker."""


class Partition(Config):
    """The content of `partition.json`."""

    format: Literal["megalith-partition"] = "megalith-partition"
    version: int = VERSION
    model: str
    hardware: str
    precision: str
    """Of the tables."""
    rule: str
    cards: tuple[CardRecord, ...] = Field(min_length=1)
    """Of one replica; each also has the dense part."""
    replicas: int = Field(ge=1)
    """Groups of so many cards, each with the whole model."""
    idle_cards: int = Field(ge=0)
    host_tables: tuple[str, ...]
    host_table_bytes: int = Field(ge=0)
    user_features: tuple[str, ...] = ()
    """Sent and looked up once a request."""
    prediction: ServingPrediction
    comparison: PlacementComparison
    assumptions: dict[str, float]

    @model_validator(mode="after")
    def _tables_lie_once(self) -> Partition:
        placed = [name for card in self.cards for name in card.tables] + list(self.host_tables)
        twice = next((name for name, times in Counter(placed).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"table '{twice}' is placed twice")
        return self

    @property
    def gains(self) -> dict[str, float]:
        """By rule, the share of the slowest card's seconds that this placement saves."""
        chosen = self.prediction.slowest_card_seconds
        return {
            name: 1 - chosen / seconds
            for name, seconds in self.comparison.slowest_card_seconds.items()
            if seconds > 0
        }

    def write(self, folder: Path) -> Path:
        """Writes the record into a frozen model's folder."""
        path = folder / PARTITION
        write_atomic(path, self.model_dump_json(indent=1) + "\n")
        return path


def read_partition(folder: Path) -> Partition:
    """The partition of a frozen model, or one sentence that names the file."""
    path, fix = folder / PARTITION, "make it again with `megalith export DIR --hardware NAME`"
    content = read_json_object(path, fix=fix, error=ServeError)
    if content.get("version") != VERSION:
        raise ServeError(f"{path} has version {content.get('version')}, this package reads {VERSION}; {fix}.")
    return parse_config(Partition, content, str(path), fix, ServeError)
