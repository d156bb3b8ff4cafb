"""What holds the rows of a table, as recipes and table specs name it.

    store: tiered                                   # short for {kind: tiered}
    store: {kind: adaptive, chunk: 16, over: {kind: tiered}}
    store: {kind: dynamic, bound: 1000000, admission: {kind: count, count: 3}, over: {kind: tiered}}

Stores nest: `over` is the one underneath, for kinds that have one. Every store says what others must know of
the whole nest, so that nobody asks for its kind:

    store.ids       the DynamicSpec that maps any ids to rows, or None: an id is its row
    store.chunks    the AdaptiveSpec that cuts rows into chunks, or None: rows are whole
    store.disk      the TieredSpec that keeps rows or chunks on disk, or None: they are in memory
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from megalith.core.config import Config
from megalith.core.errors import ConfigError
from megalith.core.units import parse_bytes

StoreKind = Literal["dense", "tiered", "adaptive", "dynamic"]
ADAPTIVE_UNITS = 64
"""Parts of an adaptive table, each of as many rows but for the last ones; none is ever cut."""
ID_PARTITIONS = 64
"""Parts that a fixed hash cuts the ids of a dynamic table into, each with its own rows; none is ever cut."""


def _bytes(size: Any) -> Any:
    """A size in bytes, also as text such as 4GiB."""
    if not isinstance(size, str):
        return size
    try:
        return parse_bytes(size)
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from error


Bytes = Annotated[int, BeforeValidator(_bytes)]


class DenseSpec(Config):
    """A row in memory for every id."""

    kind: Literal["dense"] = "dense"

    ids: ClassVar[None] = None
    chunks: ClassVar[None] = None
    disk: ClassVar[None] = None


class TieredSpec(Config):
    """Rows on disk under a cache in memory; a row that was never trained is stored nowhere."""

    kind: Literal["tiered"] = "tiered"

    ids: ClassVar[None] = None
    chunks: ClassVar[None] = None

    @property
    def disk(self) -> TieredSpec:
        """This."""
        return self


class AdaptiveSpec(Config):
    """Rows cut into chunks, of which only those live that the budget of all adaptive tables has room for."""

    kind: Literal["adaptive"] = "adaptive"
    chunk: int | None = Field(default=None, ge=1)
    """Columns of a chunk; divides the dim. None takes the widest divisor up to the policy's `chunk`."""
    over: DenseSpec | TieredSpec = Field(default=DenseSpec(), discriminator="kind")
    """What holds the live chunks: memory, or a disk under a cache."""

    ids: ClassVar[None] = None

    @property
    def chunks(self) -> AdaptiveSpec:
        """This."""
        return self

    @property
    def disk(self) -> TieredSpec | None:
        """Of its live chunks."""
        return self.over.disk


def unit_rows(rows: int) -> int:
    """Rows of a unit of an adaptive table."""
    return -(-rows // ADAPTIVE_UNITS)


def unit_edges(rows: int, parts: int) -> list[int]:
    """Where an adaptive table is cut into `parts` of about equal rows, or as many as it has units.

    >>> unit_edges(1000, 3)
    [0, 336, 672, 1000]
    """
    unit = unit_rows(rows)
    units = -(-rows // unit)
    parts = min(parts, units)
    return [min(rows, unit * (units * part // parts)) for part in range(parts + 1)]


def partition_edges(bound: int, parts: int = ID_PARTITIONS) -> list[int]:
    """Where a dynamic table of `bound` rows is cut into `parts` of whole partitions of its ids.

    Rows are counted partition after partition: of `bound` rows the first ones have one more.

    >>> partition_edges(100, 2), partition_edges(100, 4)
    ([0, 64, 100], [0, 32, 64, 82, 100])
    """
    parts = min(parts, ID_PARTITIONS)
    least, more = divmod(bound, ID_PARTITIONS)
    firsts = (ID_PARTITIONS * part // parts for part in range(parts + 1))
    return [first * least + min(first, more) for first in firsts]


def partitions_between(bound: int, rows: tuple[int, int]) -> tuple[int, int] | None:
    """The partitions of ids that own rows [first, last) of a dynamic table; None where these cut one.

    >>> partitions_between(100, (64, 100)), partitions_between(100, (0, 50))
    ((32, 64), (0, 25))
    """
    edges = partition_edges(bound)
    if rows[0] not in edges or rows[1] not in edges:
        return None
    return edges.index(rows[0]), edges.index(rows[1])


class AdmissionSpec(Config):
    """Which ids of a dynamic table get a row: all, from the n-th occurrence on, or some by chance."""

    kind: Literal["always", "count", "probability"] = "always"
    """All ids, those seen `count` times, or each occurrence by `probability`."""
    count: int = Field(default=2, ge=1, le=65535)
    """`count`: the occurrence at which an id gets its row."""
    probability: float = Field(default=0.1, gt=0, le=1)
    """`probability`: the chance of each occurrence."""
    counter_bytes: Bytes = Field(default=1 << 20, ge=4096)
    """Memory for counting ids that have no row."""


class EvictionSpec(Config):
    """Which id of a full dynamic table leaves: used longest ago, least often, or by a count that decays."""

    kind: Literal["lru", "lfu", "score"] = "lru"
    """Used longest ago, least often, or the lowest score."""
    halve_every: int = Field(default=0, ge=0)
    """`lfu`: batches after which all counts are halved; 0 is never."""
    half_life: int = Field(default=1000, ge=1)
    """`score`: batches after which half of a count is left."""


class ExpirySpec(Config):
    """Which ids leave though there is room; None is never."""

    batches: int | None = Field(default=None, ge=1)
    """Not used for more than so many batches."""
    seconds: int | None = Field(default=None, ge=1)
    """The latest event time of its uses is older than so many seconds."""
    score: float | None = Field(default=None, gt=0)
    """Its score, in uses as they count now, is below."""
    interval: int = Field(default=100, ge=1)
    """Batches that train between two looks at what has expired: each reads all rows of the map."""


class DynamicSpec(Config):
    """Ids of any 64-bit value, of which at most `bound` have a row at a time."""

    kind: Literal["dynamic"] = "dynamic"
    bound: int | None = Field(default=None, ge=64, le=2**31 - 2)
    """Rows. Give this or `bound_bytes`."""
    bound_bytes: Bytes | None = Field(default=None, ge=1)
    """Memory for rows, optimizer state and the map of ids together."""
    admission: AdmissionSpec = AdmissionSpec()
    """Which ids get a row."""
    eviction: EvictionSpec = EvictionSpec()
    """Which id leaves a full table."""
    expiry: ExpirySpec = ExpirySpec()
    """Which ids leave though there is room."""
    unknown: Literal["shared", "zeros"] = "shared"
    """What ids without a row read: one row that all of them share and train, or zeros."""
    over: DenseSpec | TieredSpec | AdaptiveSpec = Field(default=DenseSpec(), discriminator="kind")
    """What holds the rows."""

    @property
    def ids(self) -> DynamicSpec:
        """This."""
        return self

    @property
    def chunks(self) -> AdaptiveSpec | None:
        """Of its rows."""
        return self.over.chunks

    @property
    def disk(self) -> TieredSpec | None:
        """Of its rows, or of their live chunks."""
        return self.over.disk

    @model_validator(mode="after")
    def _one_bound(self) -> DynamicSpec:
        if (self.bound is None) == (self.bound_bytes is None):
            raise ValueError("give a dynamic table `bound` rows or `bound_bytes`, one of them")
        return self


StoreSpec = DenseSpec | TieredSpec | AdaptiveSpec | DynamicSpec
AnyStore = Annotated[StoreSpec, Field(discriminator="kind")]


_PLAIN: dict[str, type[DenseSpec | TieredSpec | AdaptiveSpec]] = {
    "dense": DenseSpec,
    "tiered": TieredSpec,
    "adaptive": AdaptiveSpec,
}


def store_in_full(store: object) -> object:
    """A kind alone as the store that it is short for; anything else as it is."""
    if isinstance(store, str):
        if store == "dynamic":
            raise ValueError("a dynamic table needs a bound: {kind: dynamic, bound: 1000000}")
        return _PLAIN[store]() if store in _PLAIN else {"kind": store}
    return store
