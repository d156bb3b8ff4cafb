"""The evaluations of a run: some on its way, and the last one over the whole split."""

from __future__ import annotations

import json
from typing import Any

from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError
from megalith.core.files import write_atomic
from megalith.data.dataset import Dataset
from megalith.train.checkpoints import load_learner
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.learner.learner import Learner
from megalith.train.plateau import PlateauRate
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_metrics, without_curve
from megalith.train.run.reporter import CLOCK_KEYS, Reporter
from megalith.train.stopping import BestSoFar


class RunEvaluator:
    """Scores a learner on a split, if there is one, and knows the best step so far.

    The trainer calls it on all ranks together, when no other batch is in the pipeline.
    """

    def __init__(
        self, recipe: Recipe, dataset: Dataset, split: str | None, learner: Learner, depth: int
    ) -> None:
        """`depth` batches are prepared while one is computed."""
        self._recipe, self._dataset, self.split = recipe, dataset, split
        self._learner, self._depth = learner, depth
        if split is None:
            _refuse_what_needs_evaluations(recipe, dataset)
        self.best = BestSoFar(recipe.train.early_stopping)
        self.plateau = PlateauRate(recipe.schedule.plateau)
        # The step and metrics of the last evaluation of this process that read the whole split.
        self._last: tuple[int, dict[str, Any]] | None = None

    def evaluate(self, step: int, reporter: Reporter) -> bool:
        """One evaluation on the way; whether its step is the best yet and must be kept."""
        result = self._scores(self._recipe.train.eval_batches)
        if self._recipe.train.eval_batches is None:
            self._last = step, result
        reporter.write({"kind": "eval", "step": step, **without_curve(result)})
        self.plateau.update(step, result)
        return self.best.update(step, result) and self._recipe.train.early_stopping is not None

    def final(self, step: int, reporter: Reporter, store: CheckpointStore, run: RunFolder) -> None:
        """Evaluates all of the split: the last weights, or the best ones if stopping early was asked for."""
        if self.split is None:
            return
        if self._last is not None and self._last[0] == step:
            # A run that stops early has just been evaluated; it is not reported twice.
            result, better = self._last[1], self.best.step == step
        else:
            result = self._scores()
            entry = {"kind": "eval", "step": step, **without_curve(result)}
            if not (Ranks.all().is_first and _is_reported(run, entry)):
                reporter.write(entry)
            better = self.best.update(step, result)
        if self._recipe.train.early_stopping is not None and not better and self.best.step is not None:
            step = self.best.step
            load_learner(store, step, self._learner)
            result = self._scores()
        content = json.dumps({"step": step, **result}, indent=1) + "\n"
        path = run.evaluation(self.split)
        Ranks.all().from_first(lambda: write_atomic(path, content))

    def _scores(self, max_batches: int | None = None) -> dict[str, Any]:
        """Metrics on the evaluation split, the same on every rank."""
        assert self.split is not None
        data = self._recipe.data
        return evaluate(self._learner, self._dataset, self.split, data, max_batches, depth=self._depth)


def _refuse_what_needs_evaluations(recipe: Recipe, dataset: Dataset) -> None:
    asked = {"train.early_stopping": recipe.train.early_stopping, "schedule.plateau": recipe.schedule.plateau}
    for key, config in asked.items():
        if config is not None:
            raise ConfigError(
                f"{key} needs evaluations, and {dataset.folder} has no split for them; prepare it with "
                f"--valid-fraction, or leave {key} out."
            )


def _is_reported(run: RunFolder, entry: dict[str, Any]) -> bool:
    """Whether a start that was killed between its last evaluation and its end has reported the same."""
    said = {key: value for key, value in entry.items() if key not in CLOCK_KEYS}
    return any(
        all(line.get(key) == value for key, value in said.items()) for line in read_metrics(run.metrics)
    )
