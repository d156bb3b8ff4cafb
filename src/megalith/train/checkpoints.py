"""The checkpoints of a run: which step to load, a learner with its weights, and which steps to keep."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megalith.checkpoint.differential.chain import needed_by
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


@dataclass(frozen=True)
class Pruned:
    """What `prune_checkpoints` removed and what it left, or would."""

    removed: list[int]
    kept: dict[int, str]
    """By step, why: it was asked for, is the best one, or another one needs it."""
    freed_bytes: int


def prune_checkpoints(
    run: RunFolder, keep: int | None, keep_steps: Sequence[int] = (), dry_run: bool = False
) -> Pruned:
    """Removes all checkpoints of a run but its newest `keep`, those of `keep_steps`, that of its best
    evaluation, and what these are over. Nobody may train the run meanwhile."""
    if keep is None and not keep_steps:
        raise ConfigError("Nothing says what to keep; give --keep N for the newest, --keep-step N, or both.")
    # A folder that is no run is not to become one by the lock.
    run.recipe()
    store = CheckpointStore(run.checkpoints)
    with run.locked(store.ranks):
        steps = store.steps()
        wanted = dict.fromkeys(steps[max(0, len(steps) - (keep or 0)) :], "asked")
        wanted |= {existing_step(run, store, step): "asked" for step in keep_steps}
        for best in _best_steps(run, store).intersection(steps):
            wanted.setdefault(best, "best evaluation")
        needs = {each: needed_by(store.path, [each]) - {each} for each in wanted}
        kept = {
            step: wanted.get(step) or f"step {next(each for each in needs if step in needs[each])} needs it"
            for step in steps
            if step in wanted or any(step in own for own in needs.values())
        }
        removed = [step for step in steps if step not in kept]
        freed = _unshared_bytes(map(store.path, removed), map(store.path, kept))
        if not dry_run:
            store.keep_only(wanted)
        return Pruned(removed, kept, freed)


def _unshared_bytes(folders: Iterable[Path], others: Iterable[Path]) -> int:
    """Of the files of some folders that are not in others too, by links."""
    sizes: list[dict[tuple[int, int], int]] = [{}, {}]
    for found, group in zip(sizes, (folders, others), strict=True):
        for path in (path for folder in group for path in folder.rglob("*") if path.is_file()):
            status = path.stat()
            found[status.st_dev, status.st_ino] = status.st_size
    return sum(size for file, size in sizes[0].items() if file not in sizes[1])


def _best_steps(run: RunFolder, store: CheckpointStore) -> set[int]:
    """Those of the best evaluation so far: as the summary tells it, which knows of the last evaluation, and
    as the newest checkpoint that can be read does, which may be of a run that went on."""
    told: list[object] = [read_summary(run.summary).get("best_step")] if run.summary.exists() else []
    for step in reversed(store.steps()):
        with suppress(CheckpointError):
            best = store.manifest(step).about.get("best")
            told.append(best.get("step") if isinstance(best, dict) else None)
            break
    return {step for step in told if isinstance(step, int)}
