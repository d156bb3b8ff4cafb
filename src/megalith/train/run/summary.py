"""summary.json: how a run ended, what it trained and where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from megalith.core.files import write_atomic
from megalith.hardware.machine import this_machine
from megalith.train.learner.learner import Learner
from megalith.train.run.adaptive import adaptive_totals
from megalith.train.run.folder import END_OF_DATA, RunFolder
from megalith.train.run.records import read_evaluation, read_metrics, read_prediction, without_curve
from megalith.train.run.tiers import tier_totals
from megalith.train.run.waiting import DataWait


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The step at which a run stopped, and why."""

    first_step: int
    """Where this start began: 0, or the step that it resumed from."""
    step: int
    total_steps: int
    stopped_by: str | None
    """A signal's name; None where the run came to its own end."""
    data_ended: bool
    """Whether that was because data that grew will grow no more."""
    best_step: int | None
    seconds: float
    num_ranks: int
    eval_split: str | None
    waited: DataWait
    """For data, in this start."""


def write_summary(run: RunFolder, ending: RunEnding, learner: Learner) -> dict[str, Any]:
    """Writes and returns the summary; that of a finished run has its last evaluation in it."""
    batch_size, seconds = learner.config.global_batch, ending.seconds
    trained = (ending.step - ending.first_step) * batch_size
    finished = ending.stopped_by is None
    early = END_OF_DATA if ending.data_ended else "early stopping"
    summary = {
        "run": str(run.folder),
        "finished": finished,
        "stopped_by": ending.stopped_by or (early if ending.step < ending.total_steps else None),
        "step": ending.step,
        "total_steps": ending.total_steps,
        "samples": ending.step * batch_size,
        "seconds": round(seconds, 3),
        "samples_per_second": round(trained / seconds, 1) if seconds else 0.0,
        **ending.waited.to_dict(),
        "best_step": ending.best_step,
        "anomalies": [one["message"] for one in read_metrics(run.metrics) if one["kind"] == "anomaly"],
        "ranks": ending.num_ranks,
        "tables": len(learner.tables),
        "table_bytes": learner.table_bytes,
        "dense_parameters": learner.num_dense_parameters,
        "machine": this_machine(run.folder).to_dict(),
    }
    tiers = None if learner.config.memory is None else tier_totals(read_metrics(run.metrics))
    if tiers is not None:
        summary["tiers"] = {**tiers, "predicted": _predicted(run)}
    adaptive = None if learner.config.adaptive is None else adaptive_totals(read_metrics(run.metrics))
    if adaptive is not None:
        summary["adaptive"] = adaptive
    if finished and ending.eval_split is not None:
        summary["evaluation"] = without_curve(read_evaluation(run.evaluation(ending.eval_split)))
    write_atomic(run.summary, json.dumps(summary, indent=1) + "\n")
    return summary


def _predicted(run: RunFolder) -> dict[str, Any] | None:
    """The numbers of prediction.json that the run can be held against."""
    if not run.prediction.exists():
        return None
    stored = read_prediction(run.prediction)
    return {
        key: stored[key] for key in ("hit_rate", "reads_per_sample", "step_seconds", "disk_bytes", "bound_by")
    }
