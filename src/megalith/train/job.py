"""A training job from its command to its summary, in three steps: parse, build, train.

    with training_session() as session:
        job = parse(session, request)
        with build(session, job, console) as trainer:
            summary = trainer.train()

All ranks run the same lines; the first one looks at the run folder and tells the others what it has found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from megalith.comm.ranks import Ranks
from megalith.core.errors import ConfigError
from megalith.models.custom import CustomConfig
from megalith.train.recipe import Recipe, load_recipe
from megalith.train.run.existing import refuse_existing
from megalith.train.run.folder import RunFolder
from megalith.train.run.trusted_code import check_code, code_digest, trust_code
from megalith.train.session import Session, errors_before_sigterm
from megalith.train.trainer import Trainer

_FREE = (
    *("sharding.", "ingest.", "ingest=", "memory.", "memory=", "publish.", "publish="),
    *("train.pipeline=", "embeddings.stores", "embeddings.log_evicted"),
    *("checkpoint.", "checkpoint=", "train.keep_checkpoints="),
)
"""Settings that may change when a run is resumed: those that results do not depend on, and what holds rows,
as the bound of a dynamic table; a checkpoint that does not fit is refused when it is loaded."""


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What a user asks `megalith train` for."""

    recipe: str
    """The name or path of a recipe, or the folder of a run."""
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    from_step: int | None = None
    trust_code: bool = False


@dataclass(frozen=True, slots=True)
class TrainJob:
    """A request that was checked: what to train, where, and whether a run in that folder is resumed."""

    recipe: Recipe
    run: RunFolder
    resumes: bool
    overwrite: bool
    from_step: int | None
    finished: dict[str, Any] | None
    """The summary of a run that has come to its end already: there is nothing to train."""


def parse(session: Session, request: TrainRequest, tell: Callable[[str], None] = warnings.warn) -> TrainJob:
    """The recipe with its overrides, and its run folder; refuses what does not fit together."""
    ranks, named_run = session.ranks, _names_a_run(request)
    recipe = load_recipe(request.recipe, request.overrides, tell)
    if named_run and not request.trust_code:
        check_code(recipe, Path(request.recipe))
    trust_code(recipe)
    run = RunFolder(Path(request.recipe) if named_run else request.out or Path("runs") / recipe.name)
    resume = request.resume or session.restarted
    # The first rank looks, so that all do the same whatever the folder becomes meanwhile.
    resumes = ranks.from_first(lambda: named_run or (resume and run.config.exists()))
    if request.from_step is not None and not resumes:
        raise ConfigError(
            "--from-step goes back in a run that is there; give its folder, or --out with --resume."
        )
    if resumes:
        _check_same_recipe(ranks, run, recipe)
    finished = ranks.from_first(run.finished) if resumes and request.from_step is None else None
    return TrainJob(recipe, run, resumes, request.overwrite, request.from_step, finished)


@contextmanager
def build(session: Session, job: TrainJob, console: Console | None) -> Iterator[Trainer]:
    """The trainer of a job, at the step where it starts; holds the run folder until the block is left.

    A new run in which nothing was learnt is removed if the block fails.
    """
    ranks, run = session.ranks, job.run
    with ExitStack() as locks:
        # A folder that is there is ours from here on; a new one is made when everything else is right.
        if ranks.from_first(run.folder.exists):
            locks.enter_context(run.locked(ranks))
        if not job.resumes and not job.overwrite:
            ranks.from_first(lambda: refuse_existing(run.folder))
        trainer = Trainer(job.recipe, run, console if ranks.is_first else None, job.resumes)
        locks.enter_context(run.locked(ranks))
        session.accept()
        if job.resumes:
            ranks.from_first(lambda: run.write_recipe(job.recipe))
            trainer.resume(job.from_step)
        else:
            trainer.create(job.overwrite)
        try:
            with errors_before_sigterm(ranks):
                yield trainer
        except BaseException:
            if ranks.is_first and not job.resumes and trainer.step == 0:
                # A folder that only stands in the way of the next try.
                run.discard(with_folder=True)
            raise


def _names_a_run(request: TrainRequest) -> bool:
    """Whether the folder of a run was given instead of a recipe; its settings are fixed but for sharding."""
    named_run = (Path(request.recipe) / "config.yaml").is_file()
    fixed = [override for override in request.overrides if not override.startswith(_FREE)]
    if named_run and fixed:
        raise ConfigError(
            f"{request.recipe} resumes with its own settings, all but sharding.*, ingest, memory, publish, "
            f"checkpoint, embeddings.stores, train.pipeline and train.keep_checkpoints; leave {fixed[0]} out "
            "or start a new run."
        )
    return named_run


def _check_same_recipe(ranks: Ranks, run: RunFolder, recipe: Recipe) -> None:
    # Where rows lie may change at every start; what is learnt may not.
    stored = ranks.from_first(run.recipe)
    loop = stored.train.model_copy(
        update={name: getattr(recipe.train, name) for name in ("pipeline", "keep_checkpoints")}
    )
    held = {"stores": recipe.embeddings.stores, "log_evicted": recipe.embeddings.log_evicted}
    free: dict[str, Any] = {
        "sharding": recipe.sharding,
        "ingest": recipe.ingest,
        "memory": recipe.memory,
        "publish": recipe.publish,
        "checkpoint": recipe.checkpoint,
        "train": loop,
        "embeddings": stored.embeddings.model_copy(update=held),
    }
    if isinstance(stored.model, CustomConfig) and isinstance(recipe.model, CustomConfig):
        # The run has a copy of the code.
        same_code = ranks.from_first(lambda: code_digest(stored) == code_digest(recipe))
        if same_code and stored.model.file.name == recipe.model.file.name:
            free["model"] = stored.model.model_copy(update={"file": recipe.model.file})
    if stored.model_copy(update=free) != recipe:
        raise ConfigError(
            f"{run.config} differs from the recipe given; resume it with `megalith train {run.folder}`, or "
            "choose another --out."
        )
