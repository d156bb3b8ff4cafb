"""The planner's stages and the values that pass between them, after TorchRec's planner.

    PlanInputs -> Enumerator -> ShardingOptions of every table -> Estimator -> PlacementProblem
               -> Bounder -> LowerBound -> Partitioner -> PlacementSolution -> ShardingPlan

Every stage is abstract here and has its implementation in the module or folder of its name; `planner.Planner`
composes them. A step has four phases, each of which ends when the slowest worker does:

    input      ids and lengths arrive at the workers that hold rows
    lookup     rows are read and pooled
    exchange   pooled vectors go to their samples, gradients come back; gradients of replicated tables are
               summed
    update     gradients are added up and rows updated

so the step is the sum over phases of the most loaded worker's seconds, and every option of a table is a block
of seconds and bytes that it adds to the workers it is placed on (`loads.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megalith.core.schema import TableSpec
from megalith.ops.ids.policies import RAW_ID_BYTES, id_table_spec
from megalith.sharding.plan import ExchangeConfig, Kind
from megalith.sharding.planner.search import Clock, Deadline
from megalith.sharding.planner.statistics import TableStatistics
from megalith.sharding.planner.topology import Topology

PHASES = ("input", "lookup", "exchange", "update")
NUM_PHASES = len(PHASES)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Workload:
    """What a step is made of, besides the tables."""

    global_batch: int
    optimizer: str = "rowwise_adagrad"
    exchange: ExchangeConfig = field(default_factory=ExchangeConfig)
    pipelined: bool = False
    """Whether the next batch's ids travel while this one is computed."""


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """Which memory tables may take besides the fastest."""

    slower_tiers: bool = True
    """Whether tables may lie on slower tiers, behind caches as large as the plan finds best."""
    cache_bytes_per_worker: int | None = None
    """What the caches of a worker take together, where that is given: then `memory.py` says which tables are
    behind them."""

    whole_rows: bool = False
    """Whether tables on slower tiers are not cut by columns: every part of a row would be read on its own."""

    @staticmethod
    def of_runtime(cache_bytes_per_worker: int | None = None) -> MemoryPolicy:
        """What this runtime does: all rows in memory, or on disk behind a cache of a given size."""
        return MemoryPolicy(cache_bytes_per_worker is not None, cache_bytes_per_worker, whole_rows=True)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Everything that a plan depends on; `inputs.py` builds it."""

    tables: tuple[TableSpec, ...]
    statistics: Mapping[str, TableStatistics]
    """Of every table, by its name."""
    topology: Topology
    workload: Workload
    memory: MemoryPolicy = MemoryPolicy()
    adaptive_share: float = 1.0
    """Of the bytes of adaptive tables as dense ones, what their budget lets them take."""

    def held_share(self, table: TableSpec) -> float:
        """The share of a table's bytes that is stored."""
        return 1.0 if table.store_spec.chunks is None else self.adaptive_share

    def map_bytes_per_row(self, table: TableSpec) -> float:
        """What a dynamic table takes in the fastest memory beside its rows: the map of its ids, and which id
        has a row where its rows are in chunks."""
        ids = table.store_spec.ids
        if ids is None:
            return 0.0
        raw = 0 if ids.chunks is None else RAW_ID_BYTES
        return raw + id_table_spec(ids, table.rows, 0, table.name).map_bytes / table.rows


@dataclass(frozen=True, slots=True)
class MemoryTiers:
    """The memory that tables may take."""

    tiers: Sequence[int]
    """Positions among the device's tiers, the fastest being 0."""
    cached_rows: Sequence[float] = ()
    """Shares of a table on a slower tier that the fastest may cache."""
    by_table: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The tiers of single tables, where they differ."""

    def tiers_of(self, table: TableSpec) -> Sequence[int]:
        """Positions of the tiers that a table may take."""
        return self.by_table.get(table.name, self.tiers)


@dataclass(frozen=True, slots=True)
class ShardingOption:
    """One way to shard a table."""

    kind: Kind
    columns: int = 1
    """Column slices."""
    row_cut: float | None = None
    """How rows are cut, None where they are not."""
    parts: int = 0
    """Parts of a row-wise cut that may go to any workers; 0 cuts for all workers, or all of a node."""
    tier: int = 0
    """The memory that holds the rows; beyond 0 behind a cache in the first."""
    cached: float = 1.0
    """The share of the rows that the first memory keeps: all, or those of a cache."""
    slice_dim: int = 0
    """Columns of every slice but the last, which has the rest; 0 where slices differ by one at most."""


@dataclass(frozen=True)
class PlacementProblem:
    """Options of all tables as arrays. Columns of loads: the seconds of each phase, then the bytes of each
    tier."""

    tables: tuple[TableSpec, ...]
    topology: Topology
    options: tuple[ShardingOption, ...]
    """Of all tables, table after table; elsewhere in these arrays an option is its position here."""
    first: Ints
    """Options of table t: [first[t], first[t + 1])."""
    table: Ints
    """The table of each option."""
    width: Ints
    """Workers that a block of the option spans: 1, those of a node, or all."""
    counts: Ints
    """[options, 2]: blocks of its two variants, as slices may differ in width."""
    starts: Ints
    """[options, 2]: where the loads of each variant begin in `shards`."""
    shards: Floats
    """[all shards, phases + tiers]"""
    total: Floats
    """[options, phases + tiers]: over all workers."""
    peak: Floats
    """[options, phases + tiers]: of the worker that gets most of it, one block each; seconds while the other
    processes of its host wait, since no phase can be quicker than that."""
    capacity: Floats
    """Bytes of each tier that tables may take on a worker."""
    weights: Floats
    """Of the phases: 0 where the pipeline hides one."""
    latency_seconds: float
    """What every plan pays whatever is sent."""
    global_batch: int

    @property
    def num_tables(self) -> int:
        """How many tables are to be placed."""
        return len(self.tables)

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self.topology.world_size

    def num_groups(self, option: int) -> int:
        """Groups of workers that can take a block of the option: workers, nodes, or all workers as one."""
        width = int(self.width[option])
        if width == 1:
            return self.world_size
        return 1 if width == self.world_size else self.topology.whole_nodes

    def blocks(self, option: int) -> Floats:
        """[blocks, width, phases + tiers], the wider variant first."""
        width = int(self.width[option])
        parts = [
            np.broadcast_to(self.shards[start : start + width], (int(count), width, self.shards.shape[1]))
            for start, count in zip(self.starts[option], self.counts[option], strict=True)
            if count
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def options_of(self, table: int) -> range:
        """Positions of a table's options."""
        return range(int(self.first[table]), int(self.first[table + 1]))

    def option_ranges(self) -> list[tuple[int, int]]:
        """First and last + 1 option of every table."""
        return list(zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True))


@dataclass
class PlacementSolution:
    """An option for every table and a group of workers for each of its blocks."""

    choice: Ints
    groups: list[Ints]
    """Of each table: the group (worker, node, or 0 for all workers) of each block."""

    def copy(self) -> PlacementSolution:
        """One that can be changed without changing this."""
        return PlacementSolution(self.choice.copy(), [groups.copy() for groups in self.groups])


@dataclass(frozen=True)
class LowerBound:
    """A step time that no plan can beat, and what it rests on."""

    seconds: float
    choice: Ints
    """The option with the largest share in the case with the lowest bound, for each table."""
    reduced: Floats
    """Of each option: how much the bound of the whole program rises if its table has to take it."""
    root_seconds: float
    """Bound of the program without cases: what `reduced` is added to."""
    usable: Flags
    """Options of the kinds that the case with the lowest bound has."""
    phase_seconds: Floats
    """Of the phases in the case with the lowest bound."""
    memory_price: Floats
    """Seconds for a byte of each tier, where memory is short."""
    root_memory_price: Floats
    """The same in the program without cases: what `reduced` prices bytes at."""
    cases: int


@dataclass(frozen=True)
class FoundPlacement:
    """What a partitioner found."""

    solution: PlacementSolution
    bound_seconds: float
    """Proven for every plan; at least the bound that the search began with."""
    algorithm: str


class Enumerator(ABC):
    """First stage: how each table can be sharded."""

    @abstractmethod
    def enumerate(self, inputs: PlanInputs, memory: MemoryTiers) -> list[list[ShardingOption]]:
        """Options of every table, in the order of the tables."""


class Estimator(ABC):
    """Second stage: what every option costs the workers that take it."""

    @abstractmethod
    def estimate(self, inputs: PlanInputs, options: Sequence[Sequence[ShardingOption]]) -> PlacementProblem:
        """Prices every option of every table."""


class Bounder(ABC):
    """Third stage: how quick a plan can be at all."""

    @abstractmethod
    def lower_bound(self, problem: PlacementProblem, deadline: Deadline) -> LowerBound | None:
        """None if the tables cannot fit."""


class Partitioner(ABC):
    """Last stage: which option each table takes, and which workers its blocks."""

    @abstractmethod
    def partition(
        self, problem: PlacementProblem, bound: LowerBound, clock: Clock, seconds: float
    ) -> FoundPlacement | None:
        """The best solution found by `seconds` of the clock; None if nothing fits."""
