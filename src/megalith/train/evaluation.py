"""Scoring a split: metrics over all of its rows, beside the best that generated data allows."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from megalith.core.errors import DataError
from megalith.data.dataset import Dataset
from megalith.data.loader import Loader
from megalith.metrics import calibration_curve
from megalith.metrics import evaluate as measure
from megalith.train.config import DataConfig
from megalith.train.learner import Learner


def choose_split(config: DataConfig, dataset: Dataset) -> str | None:
    """The split that evaluation reads: the recipe's, else `valid`, else `test`, if it has rows."""
    if config.eval is not None:
        dataset.split(config.eval)
        return config.eval
    found = dataset.schema.splits
    return next((name for name in ("valid", "test") if name in found and found[name].rows), None)


def evaluate(
    learner: Learner, dataset: Dataset, split: str, config: DataConfig, max_batches: int | None = None
) -> dict[str, Any]:
    """Metrics of the learner on a split, in file order; `max_batches` reads only its beginning."""
    loader = Loader(
        dataset,
        [split],
        config.eval_batch_size,
        shuffle=False,
        drop_last=False,
        prefetch=config.prefetch,
        threads=config.threads,
        epochs=1,
    )
    logits, labels, weights = [], [], []
    for batch in islice(loader, max_batches):
        logits.append(learner.predict(batch))
        labels.append(batch.labels)
        weights.append(torch.ones_like(batch.labels) if batch.weights is None else batch.weights)
    if not logits:
        raise DataError(f"Split '{split}' of {dataset.folder} has no rows; choose another split.")
    samples = torch.cat(logits), torch.cat(labels), torch.cat(weights)
    result: dict[str, Any] = {"split": split, **measure(*samples)}
    result["calibration_curve"] = calibration_curve(*samples).rows()
    best = dataset.split(split).best_log_loss
    if best is not None and max_batches is None and result["ne"] is not None:
        # The same base rate divides both NEs, so their ratio is that of the log losses.
        result["best_log_loss"] = best
        result["best_ne"] = result["ne"] * best / result["log_loss"]
        result["above_best"] = result["log_loss"] / best - 1
    return result
