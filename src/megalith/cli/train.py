"""`megalith train` and `megalith eval`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from megalith.cli.output import JsonFlag, note, print_json, progress_console, say

if TYPE_CHECKING:
    from megalith.train.config import Recipe
    from megalith.train.run.folder import Run
    from megalith.train.session import Session
    from megalith.train.trainer import Trainer

TrustFlag = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code of a model of one's own that this run folder names."),
]


def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name or .yaml path, or the folder of a run to go on with.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as train.steps=100."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out if there is one.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")
    ] = False,
    from_step: Annotated[
        int | None,
        typer.Option(help="Go back to the checkpoint of this step, drop later ones, and go on from there."),
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Train a recipe; stop it with Ctrl-C or SIGTERM and go on with `megalith train RUN`.

    On several processes: torchrun --nproc-per-node 2 -m megalith train RECIPE. Workers that torchrun restarts
    go on from the last checkpoint.
    """
    from megalith.train.session import training_session

    with training_session() as session:
        start = _Start(
            recipe, overrides or [], out, resume or session.restarted, overwrite, from_step, trust_code
        )
        summary = _train(session, start)
        if not session.ranks.is_first:
            return
        if json_output:
            print_json(summary)
        else:
            _print_summary(summary)


class _Start(NamedTuple):
    """What was asked for."""

    recipe: str
    overrides: list[str]
    out: Path | None
    resume: bool
    overwrite: bool
    from_step: int | None
    trust_code: bool


def _train(session: Session, start: _Start) -> dict[str, Any]:
    from contextlib import ExitStack

    from megalith.train.trainer import Trainer

    ranks = session.ranks
    settings, run, goes_on = _find_run(session, start)
    progress = progress_console if ranks.is_first else None
    if goes_on and start.from_step is None:
        summary = ranks.from_first(run.finished)
        if summary is not None:
            if progress is not None:
                note(f"{run.folder} has come to its end already.")
            return summary
    with ExitStack() as held:
        # A folder that is there is ours from here on; a new one is made when everything else is right.
        if ranks.from_first(run.folder.exists):
            held.enter_context(run.locked(ranks))
        if not goes_on and not start.overwrite:
            ranks.from_first(run.refuse_existing)
        trainer = Trainer(settings, run, progress)
        held.enter_context(run.locked(ranks))
        session.accept()
        if goes_on:
            ranks.from_first(lambda: run.write_recipe(settings))
            step = trainer.resume(start.from_step)
            if progress is not None:
                note(f"Resuming {run.folder} from step {step:,}.")
        else:
            ranks.from_first(lambda: run.create(settings, start.overwrite))
        return _fit(session, trainer, keep=goes_on)


def _find_run(session: Session, start: _Start) -> tuple[Recipe, Run, bool]:
    """The settings, the folder of the run, and whether it goes on with what is there."""
    from megalith.core.errors import ConfigError
    from megalith.train.recipe import load_recipe
    from megalith.train.run.folder import Run
    from megalith.train.run.trusted_code import check_code, trust_code

    ranks, recipe = session.ranks, start.recipe
    goes_on = (Path(recipe) / "config.yaml").is_file()
    fixed = [override for override in start.overrides if not override.startswith("sharding.")]
    if goes_on and fixed:
        raise ConfigError(
            f"{recipe} goes on with its own settings, all but sharding.*; leave {fixed[0]} out or start a "
            "new run."
        )
    settings = load_recipe(recipe, start.overrides)
    if goes_on and not start.trust_code:
        check_code(settings, Path(recipe))
    trust_code(settings)
    run = Run(Path(recipe) if goes_on else start.out or Path("runs") / settings.name)
    # The first rank looks, so that all do the same whatever the folder becomes meanwhile.
    goes_on = ranks.from_first(lambda: goes_on or (start.resume and run.config.exists()))
    if start.from_step is not None and not goes_on:
        raise ConfigError(
            "--from-step goes back in a run that is there; give its folder, or --out with --resume."
        )
    if goes_on:
        # Where tables lie is another matter at every start; what is learnt is not.
        stored = ranks.from_first(run.recipe).model_copy(update={"sharding": settings.sharding})
        if stored != settings:
            raise ConfigError(
                f"{run.config} differs from the recipe given; go on with `megalith train {run.folder}`, or "
                "choose another --out."
            )
    return settings, run, goes_on


def _fit(session: Session, trainer: Trainer, keep: bool) -> dict[str, Any]:
    """Trains; a new run in which nothing was learnt does not stay, unless we are to `keep` it."""
    from megalith.core.errors import MegalithError

    ranks = session.ranks
    try:
        return trainer.fit()
    except Exception as error:
        # On many ranks the mistake may be another's, and this one only lost its company.
        known = isinstance(error, MegalithError) or ranks.world_size > 1
        if known and ranks.is_first and not keep and trainer.step == 0:
            # A folder that only stands in the way of the next try.
            trainer.run.discard(with_folder=True)
        raise


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    split: Annotated[str | None, typer.Option(help="Split to score; by default the recipe's.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Another prepared data set with the same features.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Checkpoint to score; by default the best or the last.")
    ] = None,
    trust_code: TrustFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Score a trained model on a split.

    On several processes: torchrun --nproc-per-node 2 -m megalith eval RUN. Each holds its part of the tables
    and scores its share of the rows; the figures are those of one process.
    """
    from megalith.train.session import training_session
    from megalith.train.trainer import without_curve

    with training_session() as session:
        result = _evaluate(session, run, split, data, step, trust_code)
        if not session.ranks.is_first:
            return
        if json_output:
            print_json(result)
        else:
            _print_evaluation(without_curve(result))


def _evaluate(
    session: Session, run: Path, split: str | None, data: Path | None, step: int | None, trusted: bool
) -> dict[str, Any]:
    import json

    from megalith.core.errors import ConfigError
    from megalith.core.files import write_atomic
    from megalith.data.dataset import Dataset
    from megalith.train.evaluation.evaluate import choose_split
    from megalith.train.evaluation.evaluate import evaluate as score
    from megalith.train.run.folder import Run
    from megalith.train.run.trusted_code import check_code, trust_code
    from megalith.train.trainer import open_learner

    ranks, folder = session.ranks, Run(run)
    recipe = folder.recipe()
    if not trusted:
        check_code(recipe, run)
    trust_code(recipe)
    trained_on = Dataset(recipe.data.path)
    dataset = Dataset(data) if data else trained_on
    ours, theirs = trained_on.schema, dataset.schema
    if (ours.numeric, ours.categorical) != (theirs.numeric, theirs.categorical):
        raise ConfigError(
            f"{data} has other features than {recipe.data.path}, which {run} was trained on; prepare it with "
            f"--vocabulary-from {recipe.data.path}."
        )
    chosen = split or choose_split(recipe.data, dataset)
    if chosen is None:
        raise ConfigError(f"{dataset.folder} has no split valid or test; name one with --split.")
    dataset.split(chosen)
    learner, used = open_learner(folder, trained_on, step)
    overlap = ranks.world_size > 1 and recipe.sharding.pipeline
    scores = score(learner, dataset, chosen, recipe.data, overlap=overlap)
    result = {"run": str(run), "step": used, **scores}
    if data is None:
        content = json.dumps(result, indent=1) + "\n"
        ranks.from_first(lambda: write_atomic(folder.evaluation(chosen), content))
    return result


def _print_summary(summary: dict[str, Any]) -> None:
    from megalith.core.units import format_bytes, format_count, format_seconds

    say(
        f"{summary['step']:,} of {summary['total_steps']:,} steps in {format_seconds(summary['seconds'])}, "
        f"{format_count(summary['samples_per_second'])} samples/s; {summary['tables']} tables of "
        f"{format_bytes(summary['table_bytes'])}, {format_count(summary['dense_parameters'])} dense weights."
    )
    run = shlex.quote(summary["run"])
    if not summary["finished"]:
        say(f"Stopped by {summary['stopped_by']}; go on with: megalith train {run}")
        return
    if summary["stopped_by"]:
        say(f"Stopped early; the best evaluation was at step {summary['best_step']:,}.")
    if "evaluation" in summary:
        _print_evaluation(summary["evaluation"])
    say(f"Run: {summary['run']}    report: megalith report {run}")


def _print_evaluation(result: dict[str, Any]) -> None:
    names = {"ne": "NE", "log_loss": "log loss", "auc": "AUC", "calibration": "calibration"}
    numbers = [f"{shown} {result[key]:.5f}" for key, shown in names.items() if result.get(key) is not None]
    line = f"{result['split']} at step {result['step']:,}: " + ", ".join(numbers)
    if "best_ne" in result:
        line += f" (best possible NE {result['best_ne']:.5f}, {100 * result['above_best']:.2f}% above it)"
    say(line)
