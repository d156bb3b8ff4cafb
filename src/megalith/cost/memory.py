"""Bytes of a training state: weights, gradients and optimizer, by precision and by what is sharded."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZER_BYTES = 12
"""Adam in single precision: master weight and two moments."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes that training keeps for some parameters; adds up."""

    weights: float
    gradients: float
    optimizer: float

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
        )

    @property
    def total(self) -> float:
        """All three together."""
        return self.weights + self.gradients + self.optimizer


def weight_bytes(precision: str) -> int:
    """Bytes of one weight as the forward pass reads it."""
    return 4 if precision == "fp32" else 2


def traffic_bytes(precision: str) -> int:
    """Gradients travel in the type they were computed in, as published runs do."""
    return 4 if precision == "fp32" else 2


def gradient_bytes(precision: str) -> int:
    """FP16 gradients stay in FP16, as Megatron's loss scaling allows; BF16 ones are summed in single
    precision."""
    return 2 if precision == "fp16" else 4


def state_bytes(parameters: float, precision: str, sharding: str, shards: int) -> StateBytes:
    """State of `parameters` on one of `shards` ranks: ZeRO-1 cuts the optimizer, 2 gradients too, 3 weights
    too.

    `hybrid` is ZeRO-3 among the `shards` ranks that hold one copy together.
    """
    optimizer = OPTIMIZER_BYTES if precision != "fp32" else 8
    cut = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hybrid": 3}[sharding]
    return StateBytes(
        parameters * weight_bytes(precision) / (shards if cut >= 3 else 1),
        parameters * gradient_bytes(precision) / (shards if cut >= 2 else 1),
        parameters * optimizer / (shards if cut >= 1 else 1),
    )
