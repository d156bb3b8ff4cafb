"""What options of `megalith bench` can be."""

from __future__ import annotations

from enum import StrEnum


class QualityMetric(StrEnum):
    """What `bench adaptive` compares."""

    log_loss = "log_loss"
    auc = "auc"


class Charge(StrEnum):
    """What the ratios of `bench adaptive` count."""

    all = "all"
    weights = "weights"
