"""Seconds of the stages of a pipeline, summed up as its bounds need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """Seconds of the virtual stages of a pipeline for one micro-batch, and sums of them."""

    forward_sums: tuple[float, ...]
    """Of the stages before each, and of all; so the other two."""
    backward_sums: tuple[float, ...]
    weight_sums: tuple[float, ...]
    work: tuple[float, ...]
    """By device: everything."""
    weights: tuple[float, ...]
    """By device: weight gradients."""
    busiest: float
    first_backward: float
    """Both gradients of the first stage, after which nothing else follows."""
    longest_backward: float
    longest_weight: float
    experts: float
    """Of all stages: traffic among experts, part of the above."""

    @classmethod
    def of(
        cls,
        forward: Sequence[float],
        backward: Sequence[float],
        weight: Sequence[float],
        devices: Sequence[Sequence[int]],
        experts: float = 0.0,
    ) -> PipelineTimes:
        """From seconds by virtual stage and the stages of each device."""
        total = [f + b + w for f, b, w in zip(forward, backward, weight, strict=True)]
        work = tuple(sum(total[stage] for stage in stages) for stages in devices)
        both = [b + w for b, w in zip(backward, weight, strict=True)]
        return cls(
            tuple(accumulate(forward, initial=0.0)),
            tuple(accumulate(backward, initial=0.0)),
            tuple(accumulate(weight, initial=0.0)),
            work,
            tuple(sum(weight[stage] for stage in stages) for stages in devices),
            max(work),
            both[0],
            max(both),
            max(weight),
            experts,
        )
