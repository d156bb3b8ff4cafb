"""Scoring a split: metrics over all of its rows, beside the best that generated data allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from megalith.comm.ranks import Ranks
from megalith.core.errors import DataError
from megalith.data.dataset import Dataset
from megalith.metrics import calibration_curve
from megalith.metrics import evaluate as compute_metrics
from megalith.train.learner.learner import Learner
from megalith.train.loaders import DataConfig, eval_loader
from megalith.train.pipeline import Pipeline


def evaluate(
    learner: Learner,
    dataset: Dataset,
    split: str,
    config: DataConfig,
    max_batches: int | None = None,
    depth: int = 0,
    take: Callable[[Tensor], None] | None = None,
) -> dict[str, Any]:
    """Metrics of the learner on a split, in file order; `max_batches` reads only its beginning.

    On the first rank `take` is given logits, labels and weights, [3, samples], as they are computed.

    On many ranks whole batches are dealt out to them, so that each computes what one process would, and the
    first puts all scores into the order of the file.
    """
    ranks = Ranks.all()
    size = config.eval_batch_size
    rows = dataset.split(split).rows
    if max_batches is not None:
        rows = min(rows, max_batches * size)
    if not rows:
        raise DataError(f"Split '{split}' of {dataset.folder} has no rows; choose another split.")
    loader = eval_loader(config, dataset, split, ranks)
    rounds = -(-rows // (size * ranks.world_size))
    pipeline = Pipeline(loader, learner.stages(trains=False), count=rounds, depth=depth)
    parts = []
    for first, prepared in zip(range(0, rows, size * ranks.world_size), pipeline, strict=True):
        batch = prepared.batch
        logits = learner.predict(batch, prepared.resolved)
        weights = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
        starts = range(first, first + size * ranks.world_size, size)
        sizes = [min(max(rows - start, 0), size) for start in starts]
        # The last round of a beginning may hold more than was asked for.
        columns = torch.stack([logits, batch.labels, weights])[:, : sizes[ranks.rank]]
        gathered = ranks.gather_columns(columns, sizes)
        if gathered is not None:
            parts.append(gathered)
            if take is not None:
                take(gathered)
    pipeline.close()
    return ranks.from_first(lambda: _metrics_of(torch.cat(parts, dim=1), dataset, split, max_batches is None))


def _metrics_of(samples: Tensor, dataset: Dataset, split: str, whole: bool) -> dict[str, Any]:
    logits, labels, weights = samples
    result: dict[str, Any] = {"split": split, **compute_metrics(logits, labels, weights)}
    result["calibration_curve"] = calibration_curve(logits, labels, weights).rows()
    best = dataset.split(split).best_log_loss
    if best is not None and whole and result["ne"] is not None:
        # The same base rate divides both NEs, so their ratio is that of the log losses.
        result["best_log_loss"] = best
        result["best_ne"] = result["ne"] * best / result["log_loss"]
        result["above_best"] = result["log_loss"] / best - 1
    return result
