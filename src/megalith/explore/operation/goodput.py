"""How much of the time a job makes progress: failures, checkpoints, restarts, stragglers.

A failure anywhere stops all devices of a synchronous job: it fails as often as all of them together. Between
failures it saves; what was done since the last save is lost, on average half an interval. With time between
failures M, seconds C that a save stops the job and R until it runs again, an interval T leaves

    T / (T + C) x (1 - (R + T/2 + C) / M)     of the time; best near T = sqrt(2 C M) (Young, Daly)

Rates are Llama 3's by default (arXiv 2407.21783): 419 interruptions in 54 days on 16,384 GPUs, one in 50,700
device-hours, and more than 90% of the time effective. A straggler holds everybody up: with share p of devices
slow by s at a time, a step of n devices is slow with probability 1 - (1 - p)^n.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log1p, sqrt
from typing import Any

from megalith.cost.memory import OPTIMIZER_BYTES, weight_bytes
from megalith.explore.job import Job, Reliability, TransformerModel
from megalith.explore.workload import model_parameters


@dataclass(frozen=True, slots=True)
class Goodput:
    """What share of the time a job makes progress, and where the rest goes."""

    devices: int
    share: float
    """Of the time, spent on steps that count, at the speed of a step without stragglers."""
    hours_between_failures: float
    checkpoint_bytes: float
    checkpoint_seconds: float
    """What a checkpoint stops the job for."""
    interval_seconds: float
    """From one checkpoint to the next."""
    lost: dict[str, float]
    """Share of the time by cause: checkpoints, lost_work, restarts, stragglers."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {name: getattr(self, name) for name in self.__slots__}


def goodput(job: Job, devices: int, reliability: Reliability | None = None) -> Goodput:
    """The share of the time that the job makes progress on so many devices."""
    given = reliability or job.reliability
    hours = given.device_hours_between_failures / devices
    size = checkpoint_bytes(job)
    writers = max(1, devices // given.devices_per_writer)
    rate = min(given.storage_gigabytes_per_second * 1e9, writers * given.writer_gigabytes_per_second * 1e9)
    stops = size / rate * (1 - given.checkpoint_overlap)
    failure_seconds = 3600 * hours
    interval = given.checkpoint_seconds or max(1.0, sqrt(2 * stops * failure_seconds))
    restart = given.restart_seconds + size / rate
    saving = stops / (interval + stops)
    # Of the time between failures, so much is spent on starting again and on what is done twice.
    again = min(1.0, restart / failure_seconds)
    twice = min(1.0 - again, (interval / 2 + stops) / failure_seconds)
    slow = 1 - exp(devices * log1p(-given.straggler_share)) if given.straggler_share < 1 else 1.0
    stretched = slow * given.straggler_slowdown
    running = (1 - saving) * (1 - again - twice)
    share = running / (1 + stretched)
    lost = {
        "checkpoints": saving * (1 - again - twice),
        "lost_work": twice,
        "restarts": again,
        "stragglers": running - share,
    }
    return Goodput(devices, share, hours, size, stops, interval, lost)


def checkpoint_bytes(job: Job) -> float:
    """Weights and optimizer state of the whole model, once."""
    if not isinstance(job.model, TransformerModel):
        return float(job.model.tables) * job.model.rows * job.model.dim * 8
    return model_parameters(job.model) * (OPTIMIZER_BYTES + weight_bytes(job.training.precision))
