"""Learning-rate schedules as a pure function of the step; plateau.py has what evaluations make of them."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from megalith.core.config import Config
from megalith.train.plateau import PlateauConfig


class ScheduleConfig(Config):
    """A factor on every learning rate: rises over the warm-up, then falls to `end_factor` at the end."""

    kind: Literal["constant", "linear", "cosine"] = "constant"
    """The curve after the warm-up; `constant` does not fall."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the factor rises to 1."""
    end_factor: float = Field(default=0.0, ge=0)
    """The factor of the last step; of no effect where it is constant."""
    plateau: PlateauConfig | None = None
    """Lowers the rates further when evaluations no longer get better."""


def lr_factor(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """The factor for step `step`, counted from 0, of `total_steps`.

    >>> lr_factor(ScheduleConfig(kind="linear", warmup_steps=2), step=0, total_steps=10)
    0.5
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.kind == "constant":
        return 1.0
    remaining = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / remaining)
    shape = 1 - progress if config.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return config.end_factor + (1 - config.end_factor) * shape
