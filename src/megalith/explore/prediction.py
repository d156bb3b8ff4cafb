"""What is predicted of one job: the step and its parts, the memory, the traffic, what bounds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from megalith.explore.pipeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Prediction:
    """The simulated step of one plan; what `explore predict --json` prints."""

    step_seconds: float
    model_tflops_per_gpu: float
    hardware_tflops_per_gpu: float
    mfu: float
    memory_bytes_per_device: float
    """Of the fullest device."""
    fits: bool
    breakdown: dict[str, float]
    """Seconds of the slowest device's step by cause; they add up to `step_seconds`: compute, recompute,
    tensor_parallel, context_parallel, expert_parallel, pipeline_bubble, pipeline_transfer, data_parallel,
    optimizer."""
    memory: dict[str, float]
    """Bytes of the fullest device: weights, gradients, optimizer, activations, margin."""
    level_bytes: dict[str, float]
    """Bytes a step that leave the busiest member of each level, by level name."""
    bound_by: str
    """compute, memory-bandwidth, bubble, or link:<level name>."""
    micro_batch: int
    recompute: str
    uncertainty: float
    """Half of the 80% interval, relative to the step."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Seconds between which 80% of steps like this one would be measured."""
    interval_basis: str = ""
    """Which measured steps the interval is from."""
    plan_error: float = 0.0
    """The same, relative, for the ratio of two plans of one model on one device and stack."""
    stack: str = ""
    """The software that was predicted."""
    offload: str = "none"
    offload_share: float = 1.0
    schedule: str = "1f1b"
    vpp: int = 1
    sharding: str = "none"
    """What blanks of the job were filled with, or what it said."""
    timeline: Timeline | None = field(default=None, compare=False)
    """The simulated step; only when asked for."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but the timeline, as JSON takes it."""
        names = [name for name in self.__slots__ if name != "timeline"]
        return {name: getattr(self, name) for name in names}
