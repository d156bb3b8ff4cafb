"""Scoring a trained run on a split, of the data that it was trained on or of another set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError
from megalith.core.files import write_atomic
from megalith.data.dataset import Dataset
from megalith.train.checkpoints import open_learner
from megalith.train.evaluation.evaluate import evaluate
from megalith.train.loaders import choose_split
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
    step: int | None = None
    trust_code: bool = False


def score_run(ranks: Ranks, request: EvalRequest) -> dict[str, Any]:
    """Metrics of a run's best or newest checkpoint; on its own data also written to the run folder."""
    run = RunFolder(request.run)
    recipe = run.recipe()
    if not request.trust_code:
        check_code(recipe, request.run)
    trust_code(recipe)
    trained_on = Dataset(recipe.data.path)
    dataset = trained_on if request.data is None else _other_data(request, recipe, trained_on)
    split = request.split or choose_split(recipe.data, dataset)
    if split is None:
        raise ConfigError(f"{dataset.folder} has no split valid or test; name one with --split.")
    dataset.split(split)
    learner, step = open_learner(run, trained_on, request.step)
    depth = recipe.train.pipeline if learner.embeddings.prepares_ahead else 0
    scores = evaluate(learner, dataset, split, recipe.data, depth=depth)
    result = {"run": str(request.run), "step": step, **scores}
    if request.data is None:
        content = json.dumps(result, indent=1) + "\n"
        ranks.from_first(lambda: write_atomic(run.evaluation(split), content))
    return result


def _other_data(request: EvalRequest, recipe: Recipe, trained_on: Dataset) -> Dataset:
    assert request.data is not None
    dataset = Dataset(request.data)
    ours, theirs = trained_on.schema, dataset.schema
    if (ours.numeric, ours.categorical) != (theirs.numeric, theirs.categorical):
        raise ConfigError(
            f"{request.data} has other features than {recipe.data.path}, which {request.run} was trained on; "
            f"prepare it with --vocabulary-from {recipe.data.path}."
        )
    return dataset
