"""Scoring a trained run on a split, of the data that it was trained on or of another set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError, DataError
from megalith.core.files import write_atomic
from megalith.data.dataset import Dataset
from megalith.train.checkpoints import Checkpoint, open_learner
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.evaluation.score_file import ScoreFile, check_score_file
from megalith.train.loaders import choose_split, open_dataset
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.trusted_code import check_code, trust_code


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What a user asks `megalith eval` for."""

    run: Path
    split: str | None = None
    data: Path | None = None
    """Another prepared data set with the same features; None takes the one of the recipe."""
    checkpoint: Checkpoint = None
    trust_code: bool = False
    predictions: Path | None = None
    """A file to write the score and the label of every row to."""


def score_run(ranks: Ranks, request: EvalRequest) -> dict[str, Any]:
    """Metrics of a run's best or newest checkpoint; on its own data also written to the run folder."""
    run = RunFolder(request.run)
    recipe = run.recipe()
    if not request.trust_code:
        check_code(recipe, request.run)
    trust_code(recipe)
    trained_on = run.trained_on()
    dataset = _data(request, recipe, trained_on)
    split = request.split or choose_split(recipe.data, dataset)
    if split is None:
        raise ConfigError(f"{dataset.folder} has no split valid or test; name one with --split.")
    dataset.split(split)
    if request.predictions is not None:
        path = request.predictions
        ranks.from_first(lambda: check_score_file(path))
    learner, step = open_learner(run, trained_on, request.checkpoint)
    depth = recipe.train.pipeline if learner.embeddings.prepares_ahead else 0
    with ScoreFile(request.predictions if ranks.is_first else None) as file:
        take = None if request.predictions is None else file.write_samples
        scores = evaluate(learner, dataset, split, recipe.data, depth=depth, take=take)
    result = {"run": str(request.run), "step": step, **scores}
    if request.data is None:
        content = json.dumps(result, indent=1) + "\n"
        ranks.from_first(lambda: write_atomic(run.evaluation(split), content))
    return result if request.predictions is None else {**result, "predictions": str(request.predictions)}


def _data(request: EvalRequest, recipe: Recipe, trained_on: Dataset) -> Dataset:
    """The data set to score: the one that was named, or that the run was trained on if it is still there."""
    if request.data is None and recipe.data.raw is not None:
        return open_dataset(recipe.data, trained_on.folder, RunFolder(request.run).file_index)
    path = recipe.data.path if request.data is None else request.data
    if request.data is None and not path.exists():
        raise DataError(
            f"{path}, which {request.run} was trained on, is not there any more; name a prepared data set "
            "with --data, or score raw files with `megalith predict`."
        )
    return same_features(Dataset(path), trained_on, request.run)


def same_features(dataset: Dataset, trained_on: Dataset, run: Path) -> Dataset:
    """The data set, if its columns are those that a run was trained on."""
    ours, theirs = trained_on.schema, dataset.schema
    if (ours.numeric, ours.categorical) != (theirs.numeric, theirs.categorical):
        raise ConfigError(
            f"{dataset.folder} has other features than {trained_on.folder}, which {run} was trained on; "
            f"prepare it with --vocabulary-from {trained_on.folder}."
        )
    return dataset
