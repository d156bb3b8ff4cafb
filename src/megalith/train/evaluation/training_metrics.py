"""Metrics of the batches that a run trains on, each scored before the step that learns from it."""

from __future__ import annotations

from typing import Any

from megalith.metrics import RunMetrics, WindowMetrics
from megalith.train.evaluation.gather_scores import BatchScores


class MeanLoss:
    """The mean loss of the steps since the last report."""

    def __init__(self, loss: float = 0.0, steps: int = 0) -> None:
        self.loss, self.steps = loss, steps

    def add(self, loss: float) -> None:
        """Takes one step in."""
        self.loss += loss
        self.steps += 1

    def mean(self) -> float:
        """The mean over the steps so far, of which there must be one."""
        return self.loss / self.steps

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"loss": self.loss, "steps": self.steps}


class TrainingMetrics:
    """Over a window of the newest samples, over the whole run, and the loss since the last report.

    The trainer updates it after every step, on the first rank only.
    """

    def __init__(self, window_samples: int) -> None:
        self.window = WindowMetrics(window_samples)
        self.overall = RunMetrics()
        self.interval = MeanLoss()

    def update(self, scores: BatchScores) -> None:
        """Takes the samples of a step in."""
        self.window.update(scores.logits, scores.labels, scores.weights)
        self.overall.update(scores.logits, scores.labels, scores.weights)
        self.interval.add(float(scores.loss))

    def take_interval(self) -> MeanLoss:
        """The loss since the last call; the next interval begins."""
        interval, self.interval = self.interval, MeanLoss()
        return interval

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the states of its three parts, by name."""
        self.window.load_state_dict(state["window"])
        self.overall.load_state_dict(state["overall"])
        self.interval = MeanLoss(**state["interval"])
