"""What the files of a run say, gathered into one value; any of them may be missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megalith.core.errors import ConfigError
from megalith.report.tables import TablesFacts, collect_tables
from megalith.report.timing import TimeSpent, read_time_spent
from megalith.report.waits import RankTimes, Waits, read_rank_times, read_waits
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_evaluation, read_metrics, read_prediction, read_summary
from megalith.train.run.tiers import tier_totals
from megalith.train.stopping import BestSoFar

Values = dict[str, Any]

METRICS = ("ne", "log_loss", "auc", "calibration")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything the page shows."""

    folder: Path
    recipe: Recipe
    config_text: str
    training: list[Values]
    """Lines of metrics.jsonl with `kind: train`; each has `samples`."""
    evaluations: list[Values]
    """Lines with `kind: eval`, with `trained_samples` added."""
    finals: list[Values]
    """Full evaluations, one a split, the one to quote first."""
    summary: Values
    time_spent: TimeSpent | None
    tables: TablesFacts
    tiers: Values | None = None
    """What tiers of tables did in the whole run; None where every table is whole in memory."""
    prediction: Values | None = None
    """What they were predicted to do."""
    anomalies: list[Values] = field(default_factory=list)
    """Lines with `kind: anomaly`."""
    rank_times: list[RankTimes] = field(default_factory=list)
    """Where the time of every rank that left a trace went."""
    waits: Waits | None = None
    """Who waited for whom; None with one rank, or without its traces."""

    @property
    def step(self) -> int:
        """The last step."""
        steps = [entry["step"] for entry in (*self.training, *self.evaluations)]
        return int(self.summary.get("step") or max(steps, default=0))

    @property
    def samples(self) -> int:
        """Samples trained on."""
        return self.step * self.recipe.data.batch_size

    @property
    def seconds(self) -> float:
        """Time over all sessions; the summary knows only of the last."""
        if self.time_spent is not None:
            return self.time_spent.total_seconds
        return float(self.summary.get("seconds") or sum(entry["seconds"] for entry in self.training))

    @property
    def samples_per_second(self) -> float | None:
        """Samples trained on a second; None where the run recorded no time."""
        if self.summary.get("samples_per_second"):
            return float(self.summary["samples_per_second"])
        seconds = sum(entry["seconds"] for entry in self.training)
        return self.training[-1]["samples"] / seconds if seconds else None

    @property
    def samples_per_epoch(self) -> float | None:
        """Samples of an epoch, as training counted them; None before its first report."""
        counted = [entry for entry in self.training if entry.get("epoch")]
        return counted[-1]["samples"] / counted[-1]["epoch"] if counted else None

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, as training judges it; of those so far in a run that goes on."""
        if self.summary.get("best_step") is not None:
            return int(self.summary["best_step"])
        best = BestSoFar(self.recipe.train.early_stopping)
        for entry in self.evaluations:
            best.update(entry["step"], {**dict.fromkeys(METRICS), **entry})
        return best.step

    @property
    def best_evaluation(self) -> Values | None:
        """What metrics.jsonl says of the best step."""
        at_best = [entry for entry in self.evaluations if entry["step"] == self.best_step]
        return at_best[-1] if at_best else None

    @property
    def status(self) -> str:
        """How the run ended, in a few words."""
        if not self.summary:
            return "not finished"
        if not self.summary.get("finished"):
            return f"stopped by {self.summary.get('stopped_by')}"
        return "stopped early" if self.summary.get("stopped_by") else "finished"

    def headline(self) -> Values:
        """The numbers to quote: the final evaluation, or the last training window if there is none."""
        values: Values = {"recipe": self.recipe.name, "status": self.status}
        values |= {"step": self.step, "best_step": self.best_step, "samples": self.samples}
        values["seconds"], values["samples_per_second"] = self.seconds, self.samples_per_second
        if self.finals:
            source: Values = self.finals[0]
            values["split"] = source["split"]
        else:
            source = self.training[-1]["window"] if self.training else {}
        for key in (*METRICS, "best_ne", "best_log_loss", "above_best"):
            if key in source:
                values[key] = source[key]
        values["anomalies"] = len(self.anomalies)
        return values


def collect(folder: Path) -> RunFacts:
    """The facts of the run in `folder`, or one sentence that says why it is not one."""
    if not folder.exists():
        raise ConfigError(
            f"{folder} does not exist; name the folder of a run, as `megalith train` printed it."
        )
    run = RunFolder(folder)
    recipe = run.recipe()
    entries = finite(read_metrics(run.metrics))
    training = [entry for entry in entries if entry.get("kind") == "train"]
    evaluations = [
        {**entry, "trained_samples": entry["step"] * recipe.data.batch_size}
        for entry in entries
        if entry.get("kind") == "eval"
    ]
    summary = finite(read_summary(run.summary)) if run.summary.exists() else {}
    seconds = summary.get("seconds")
    return RunFacts(
        folder=folder,
        recipe=recipe,
        config_text=run.config.read_text(encoding="utf-8"),
        training=training,
        evaluations=evaluations,
        finals=_finals(folder),
        summary=summary,
        time_spent=read_time_spent(run.trace, seconds),
        tables=collect_tables(run, recipe),
        tiers=tier_totals(training),
        prediction=finite(read_prediction(run.prediction)) if run.prediction.exists() else None,
        anomalies=[entry for entry in entries if entry.get("kind") == "anomaly"],
        rank_times=read_rank_times(run),
        waits=read_waits(run),
    )


def finite(value: Any) -> Any:
    """A copy without NaN and infinities, which a diverged run reports and JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _finals(folder: Path) -> list[Values]:
    """Test first: it is what nothing was chosen by."""
    evaluations = [finite(read_evaluation(path)) for path in sorted(folder.glob("evaluation-*.json"))]
    order = {"test": 0, "valid": 1}
    return sorted(evaluations, key=lambda final: (order.get(final["split"], 2), final["split"]))
