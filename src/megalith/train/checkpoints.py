"""Opening the checkpoints of a run: which step to load, and a learner with its weights."""

from __future__ import annotations

import os

from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import CheckpointError, MegalithError
from megalith.data.dataset import Dataset
from megalith.train.learner.learner import Learner
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_summary
from megalith.train.sharding_plan import plan_for_eval


def open_learner(run: RunFolder, dataset: Dataset, step: int | None = None) -> tuple[Learner, int]:
    """The model of a finished or stopped run: its best step where it stopped early, else its newest.

    With a process group its tables are cut over all ranks, which call this together.
    """
    recipe, ranks = run.recipe(), Ranks.all()
    store = CheckpointStore(run.checkpoints, ranks=ranks.with_own_group())
    # The first rank looks: a run that still trains may save meanwhile.
    chosen = ranks.from_first(
        lambda: _preferred_step(run, recipe, store) if step is None else existing_step(run, store, step)
    )
    plan = plan_for_eval(recipe, dataset, ranks, run.plan)
    # Whoever trains the run meanwhile has files of its own.
    rows = run.rows(recipe.memory) / f"eval-{os.getpid()}"
    learner = Learner(recipe.learner_config(rows), dataset.schema, plan)
    load_learner(store, chosen, learner)
    return learner, chosen


def load_learner(store: CheckpointStore, step: int, learner: Learner) -> None:
    """Puts the weights of a checkpoint into a learner, leaving the rest of the run's state alone."""
    state = {"learner": learner.state_dict()}
    store.load(step, state)
    learner.load_state_dict(state["learner"])


def existing_step(run: RunFolder, store: CheckpointStore, step: int) -> int:
    """The step asked for, if there is a checkpoint of it; else an error that lists those that are there."""
    steps = store.steps()
    if step not in steps:
        have = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"{run.folder} has no checkpoint of step {step}; it has: {have}.")
    return step


def _preferred_step(run: RunFolder, recipe: Recipe, store: CheckpointStore) -> int:
    if recipe.train.early_stopping is not None and run.summary.exists():
        best = read_summary(run.summary).get("best_step")
        if best in store.steps():
            return int(best)
    latest = store.latest()
    if latest is None:
        raise MegalithError(
            f"{run.folder} has no checkpoint yet; train it with `megalith train {run.folder}`."
        )
    return latest
