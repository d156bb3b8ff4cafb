"""Opening the checkpoints of a run: which step to load, and a learner with its weights."""

from __future__ import annotations

import itertools
import os
from typing import Literal

from megalith.checkpoint.store import CheckpointStore
from megalith.comm.ranks import Ranks
from megalith.core.errors import CheckpointError, ConfigError, MegalithError
from megalith.data.dataset import Dataset
from megalith.train.learner.learner import Learner
from megalith.train.recipe import Recipe
from megalith.train.run.folder import RunFolder
from megalith.train.run.records import read_summary
from megalith.train.sharding_plan import plan_for_eval

# Two models of a run in one process have files of their own.
_OPENED = itertools.count()

Checkpoint = int | Literal["best", "last"] | None
"""Which one: that of a step, of the best evaluation, the newest; None is the best where a run stops early,
else the newest."""


def parse_checkpoint(text: str | int | None) -> Checkpoint:
    """What a user says: `best`, `last` or a step.

    >>> parse_checkpoint("best"), parse_checkpoint("500")
    ('best', 500)
    """
    if text is None or isinstance(text, int):
        return text
    if text == "best":
        return "best"
    if text == "last":
        return "last"
    if not text.isdecimal():
        raise ConfigError(f"--checkpoint {text} is neither best nor last nor a step; name one of these.")
    return int(text)


def open_learner(run: RunFolder, dataset: Dataset, wanted: Checkpoint = None) -> tuple[Learner, int]:
    """The model of a finished or stopped run, and the step of its checkpoint.

    With a process group its tables are cut over all ranks, which call this together.
    """
    recipe, ranks = run.recipe(), Ranks.all()
    store = CheckpointStore(run.checkpoints, ranks=ranks.with_own_group())
    # The first rank looks: a run that still trains may save meanwhile.
    chosen = ranks.from_first(lambda: choose_step(run, recipe, store, wanted))
    plan = plan_for_eval(recipe, dataset, ranks, run.plan)
    # Whoever trains the run meanwhile has files of its own.
    rows = run.rows(recipe.memory) / f"eval-{os.getpid()}-{next(_OPENED)}"
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


def choose_step(run: RunFolder, recipe: Recipe, store: CheckpointStore, wanted: Checkpoint) -> int:
    """The step of the checkpoint that was asked for, which is there."""
    if isinstance(wanted, int):
        return existing_step(run, store, wanted)
    by_default = wanted is None and recipe.train.early_stopping is not None
    if (wanted == "best" or by_default) and run.summary.exists():
        best = read_summary(run.summary).get("best_step")
        if best in store.steps():
            return int(best)
    if wanted == "best":
        have = ", ".join(map(str, store.steps())) or "none"
        raise CheckpointError(
            f"{run.folder} has no checkpoint of its best evaluation, which runs with train.early_stopping "
            f"keep and finished runs know; it has: {have}."
        )
    latest = store.latest()
    if latest is None:
        raise MegalithError(
            f"{run.folder} has no checkpoint yet; train it with `megalith train {run.folder}`."
        )
    return latest
