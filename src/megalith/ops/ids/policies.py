"""Which ids of a dynamic table get a row, which leave when there is none left, and which expire.

Scores are decayed counts of uses. Instead of making every score smaller, a use adds more the later it is, so
the order of rows never changes while none is used. `score_clock` says how much, in powers of two; every 64
doublings all scores are divided by 2 ** 64, which rounds nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from megalith.core.errors import ConfigError
from megalith.core.store_spec import ID_PARTITIONS, DynamicSpec

_PAGE = 4096
PARTITIONS = ID_PARTITIONS
"""Ids of a table are cut into so many by a hash; each decides alone, and a rank owns whole ones."""
RAW_ID_BYTES = 8
"""Of an id, where rows in chunks are told which they have."""
COUNTER_BUCKET_BYTES = 64
MOST_ROWS = 2**31 - 1
_DOUBLINGS = 64


class ScoreClock(NamedTuple):
    """What scores are measured in at a batch."""

    weight: float
    """What one use adds."""
    segment: int
    """How often all scores have been divided by 2 ** 64."""


@dataclass(frozen=True)
class IdAdmission:
    """Which ids get a row: every one, from the n-th occurrence on, or each occurrence with a probability.

    Occurrences of ids without a row are counted in `counter_bytes`, at 6.4 bytes an id; the ids that were not
    seen for longest are forgotten. The draw is a hash of (seed, id, number of the occurrence).
    """

    kind: Literal["always", "count", "probability"] = "always"
    count: int = 2
    probability: float = 0.1
    counter_bytes: int = 1 << 20
    """At least a cache line for each of the 64 partitions."""

    def __post_init__(self) -> None:
        if self.kind not in ("always", "count", "probability"):
            raise ConfigError(f"admission is {self.kind!r}; use always, count or probability.")
        if not 1 <= self.count <= 65535:
            raise ConfigError(f"admission.count is {self.count}; use 1 to 65535 occurrences.")
        if not 0 < self.probability <= 1:
            raise ConfigError(
                f"admission.probability is {self.probability}; use a number above 0 and up to 1."
            )
        if self.counter_bytes < PARTITIONS * COUNTER_BUCKET_BYTES:
            raise ConfigError(f"admission.counter_bytes is {self.counter_bytes}; use 4096 or more.")

    @property
    def counter_buckets(self) -> int:
        """Of each partition; none where nothing is counted."""
        if self.kind == "always":
            return 0
        return self.counter_bytes // (PARTITIONS * COUNTER_BUCKET_BYTES)

    @property
    def limit(self) -> int:
        """An occurrence is admitted if its hash, of 64 bits, is below; for a probability of 1 all but one."""
        return min(2**64 - 1, int(self.probability * 2.0**64))


@dataclass(frozen=True)
class IdEviction:
    """Which row leaves when a partition is full; ties by the last batch, then by id, the smaller first.

    `lru`: the one used longest ago. `lfu`: the one with the smallest count, all counts halved every
    `halve_every` batches (0: never). `score`: the one with the smallest decayed count, of which half is left
    after `half_life` batches.
    """

    kind: Literal["lru", "lfu", "score"] = "lru"
    halve_every: int = 0
    half_life: int = 1000

    def __post_init__(self) -> None:
        if self.kind not in ("lru", "lfu", "score"):
            raise ConfigError(f"eviction is {self.kind!r}; use lru, lfu or score.")
        if self.halve_every < 0:
            raise ConfigError(f"eviction.halve_every is {self.halve_every}; use 0 or a number of batches.")
        if self.half_life < 1:
            raise ConfigError(f"eviction.half_life is {self.half_life}; use 1 batch or more.")

    @property
    def by_score(self) -> bool:
        """Whether scores decide, and not the last use alone."""
        return self.kind != "lru"

    @property
    def decays(self) -> bool:
        """Whether what one use adds to a score depends on the batch."""
        return self.kind == "score" or (self.kind == "lfu" and self.halve_every > 0)

    def score_clock(self, batch: int) -> ScoreClock:
        """What a use in a batch adds; with `lru` a score is a plain count."""
        if self.kind == "score":
            turn = _DOUBLINGS * self.half_life
            return ScoreClock(2.0 ** (batch % turn / self.half_life), batch // turn)
        if self.kind == "lfu" and self.halve_every:
            halvings = batch // self.halve_every
            return ScoreClock(2.0 ** (halvings % _DOUBLINGS), halvings // _DOUBLINGS)
        return ScoreClock(1.0, 0)

    def score_factor(self, before: IdEviction, batch: int) -> float:
        """What scores that were saved after a batch under another policy are multiplied by for this one."""
        return self.score_clock(batch).weight / before.score_clock(batch).weight


@dataclass(frozen=True)
class IdExpiry:
    """Which ids leave though there is room: those that one of these holds for; None is never."""

    batches: int | None = None
    """Not used for more than so many batches."""
    seconds: int | None = None
    """The latest event time of its uses is older than so many seconds."""
    score: float | None = None
    """Its score, in uses as they count now, is below."""

    def __post_init__(self) -> None:
        for name, least in (("batches", self.batches), ("seconds", self.seconds), ("score", self.score)):
            if least is not None and least <= 0:
                raise ConfigError(f"expiry.{name} is {least}; use a number above 0, or leave it out.")

    def least_score(self, clock: ScoreClock) -> float:
        """Stored scores below it expire."""
        return 0.0 if self.score is None else self.score * clock.weight


@dataclass(frozen=True)
class IdTableSpec:
    """A table whose ids may be any 64-bit values, of which `bound` have a row at a time."""

    bound: int
    admission: IdAdmission = field(default_factory=IdAdmission)
    eviction: IdEviction = field(default_factory=IdEviction)
    expiry: IdExpiry = field(default_factory=IdExpiry)
    seed: int = 0
    """Of draws by probability: 64 bits."""

    def __post_init__(self) -> None:
        check_bound(self.bound)

    @property
    def timed(self) -> bool:
        """Whether event times are kept."""
        return self.expiry.seconds is not None

    @property
    def map_bytes(self) -> int:
        """What a map takes for the table, within 5% once all its rows are in use and some have left."""
        index = PARTITIONS * 64 + self.bound * 64 * 4 // 51
        uses = (20 if self.timed else 16) * (self.bound + PARTITIONS * 8)
        queue = PARTITIONS * 512 + self.bound * 24 * 5 // 64
        counter = self.admission.counter_buckets * COUNTER_BUCKET_BYTES * PARTITIONS
        return index + uses + queue + counter

    @property
    def most_map_bytes(self) -> int:
        """What a map takes for the table at most, with batches of up to an eighth of its rows.

        Memory is taken in whole pages, and where ids leave by their last use the queue holds all rows of a
        batch, in a list that grows by doubling.
        """
        index = 64 + math.ceil(self.rows_of(0) / 12.75) * 64
        index = _in_pages(index) if index > 2 * _PAGE else index
        uses = _in_pages((20 if self.timed else 16) * (self.bound + PARTITIONS * 8))
        queue = PARTITIONS * 512 + self.bound * 24 // 4
        counter = self.admission.counter_buckets * COUNTER_BUCKET_BYTES * PARTITIONS
        return PARTITIONS * index + uses + queue + counter

    def rows_of(self, partition: int) -> int:
        """Rows of a partition: those below the bound that leave its number when divided by 64."""
        return (self.bound - partition + PARTITIONS - 1) // PARTITIONS


def id_table_spec(store: DynamicSpec, bound: int, seed: int, table: str) -> IdTableSpec:
    """The settings of a table's map of ids; draws depend on the seed and the table's name."""
    admission, eviction, expiry = store.admission, store.eviction, store.expiry
    digest = hashlib.sha256(f"ids:{seed}:{table}".encode()).digest()
    return IdTableSpec(
        bound=bound,
        admission=IdAdmission(
            admission.kind, admission.count, admission.probability, admission.counter_bytes
        ),
        eviction=IdEviction(eviction.kind, eviction.halve_every, eviction.half_life),
        expiry=IdExpiry(expiry.batches, expiry.seconds, expiry.score),
        seed=int.from_bytes(digest[:8], "little"),
    )


def _in_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def bound_for(ids: int) -> int:
    """Rows with which so many ids all stay: partitions get unequal numbers of them, within 3.5 deviations."""
    return max(PARTITIONS, ids + math.ceil(3.5 * math.sqrt(PARTITIONS * ids)))


def check_bound(bound: int) -> None:
    """Refuses a bound that leaves a partition without a row, or rows without a number."""
    if not PARTITIONS <= bound <= MOST_ROWS:
        raise ConfigError(
            f"A dynamic table of {bound} rows is not possible; use {PARTITIONS}, one for each partition of "
            f"its ids, to {MOST_ROWS}."
        )
