"""What the planner expects of a plan: seconds of a step, its bound, and loads of workers, phases and tables.

It is the `estimate` of a plan file. The runtime reads nothing of it; reports, benchmarks and the dry run do.
"""

from __future__ import annotations

from dataclasses import dataclass

from megalith.core.units import format_duration

LATENCY = "latency"
"""The part of a step that is in no phase: collectives that begin, vectors copied to the output."""
USUAL_CACHE = 0.2
"""The share of a table on a slower tier that the first memory usually caches."""


@dataclass(frozen=True, slots=True)
class PhaseEstimate:
    """One phase of a step: how long it takes, and because of whom."""

    seconds: float
    mean_seconds: float
    """Of all workers."""
    worker: int
    """The slowest."""
    counted: bool
    """Whether the step waits for it; the pipeline may hide it."""


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """What one worker does in a step, and holds."""

    worker: int
    compute_seconds: float
    communication_seconds: float
    phases: dict[str, float]
    """Seconds by phase."""
    memory_bytes: dict[str, float]
    """By tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEstimate:
    """How one table is sharded, and what it costs all workers together."""

    table: str
    kind: str
    columns: int
    """Column slices."""
    row_cut: float | None
    """Weight of even loads against even rows, None where rows are not cut."""
    tier: str
    """The memory that holds its rows."""
    cached_rows: float = USUAL_CACHE
    """The share of its rows that the first memory keeps."""
    workers: int
    rows: int
    dim: int
    lookups: float
    """Mean ids of a sample."""
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """What the planner expects of a plan."""

    step_seconds: float
    """The embedding part of a step."""
    lower_bound_seconds: float
    """No plan is quicker."""
    gap: float
    """How far above the bound the plan is at most, as a share of it."""
    imbalance: float
    """Slowest worker of each phase over the mean, less one."""
    bound_by: str
    """What a faster one of would speed the step up most."""
    algorithm: str
    """What found the plan."""
    planning_seconds: float
    hardware: str
    device: str
    memory_capacity_bytes: dict[str, float]
    """That tables may take on a worker, by tier, the fastest first."""
    phases: dict[str, PhaseEstimate]
    workers: tuple[WorkerEstimate, ...]
    tables: tuple[TableEstimate, ...]
    one_worker_seconds: float | None = None
    """The same step on one worker; None where its tables do not fit one, or where nobody asked."""

    def step_parts(self) -> dict[str, float]:
        """What `step_seconds` consists of: the phases that a step waits for, and what no phase holds."""
        counted = {name: phase.seconds for name, phase in self.phases.items() if phase.counted}
        parts = {name: seconds for name, seconds in counted.items() if seconds}
        return {**parts, LATENCY: self.step_seconds - sum(parts.values())}

    @property
    def one_worker_suffices(self) -> bool:
        """Whether one worker holds all tables and is predicted to be no slower."""
        return self.one_worker_seconds is not None and self.one_worker_seconds <= self.step_seconds

    @property
    def first_tier(self) -> str:
        """The fastest memory."""
        return next(iter(self.memory_capacity_bytes))

    def used_tiers(self) -> list[str]:
        """Memory that any worker takes."""
        return [
            tier
            for tier in self.memory_capacity_bytes
            if any(worker.memory_bytes[tier] for worker in self.workers)
        ]


def one_worker_words(estimate: PlanEstimate, world_size: int) -> str:
    """The advice to take one worker, where it suffices."""
    assert estimate.one_worker_seconds is not None
    alone, step = format_duration(estimate.one_worker_seconds), format_duration(estimate.step_seconds)
    return (
        f"One worker suffices: it holds all tables, and the embedding part of the same step is predicted to "
        f"take {alone} on one, {step} on {world_size:,}. Take one (`--world-size 1`), unless the dense part "
        "needs more."
    )
